"""Families: what most classes of a model begin with is left out of what the page shows."""

import pytest
import torch
from torch import nn

import tbscope
from tbscope.drawing.class_prefixes import find_family


@pytest.mark.parametrize(
    ("labels", "family"),
    [
        (["RTDetrModel", "RTDetrEncoder", "RTDetrMLP"], "RTDetr"),
        (["GPT2Model", "GPT2Block", "GPT2MLP", "NewGELU"], "GPT2"),
        (["T5Stack", "T5Block", "T5LayerFF"], "T5"),
        (["Qwen2_5_VLBlock", "Qwen2_5_VLModel", "Qwen2_5_VLNorm"], "Qwen2_5_VL"),
        (["DebertaV2Layer", "DebertaV2Model", "DebertaV2Output"], "DebertaV2"),
        # Two are not enough, nor is less than three tenths.
        (["LlamaModel", "LlamaMLP"], ""),
        (["LlamaModel", "LlamaMLP", "LlamaNorm", *"ABCDEFGH"], ""),
        # A part of a word is none, and neither is a whole name.
        (["Bertha", "Berthold", "Bertram"], ""),
        (["BertLayer", "BertLayerNorm", "BertLayerOut"], "Bert"),
        ([], ""),
    ],
)
def test_a_family_is_what_most_names_begin_with_in_whole_words(labels, family):
    assert find_family(labels) == family


class TinyMLP(nn.Sequential):
    """Two layers."""


class TinyBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = TinyMLP(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return x + self.mlp(x)


class TinyLinear(TinyMLP):
    """Its name without the family is that of another class."""


class TinyForSumsOfAll(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.sum()


def names(*blocks):
    graph = tbscope.trace(TinyForSumsOfAll(*blocks), torch.rand(2, 4))
    return [node.name for node in tbscope.to_graph_def(graph).node]


def test_cards_and_the_legend_leave_the_family_out_and_the_model_is_called_by_it():
    found = names(TinyBlock(), TinyBlock(), TinyLinear(nn.Linear(4, 4), nn.ReLU()))
    assert {"Tiny", "blocks/0/Block", "blocks/0/mlp/MLP"} <= set(found)
    assert "__function_library__MLP_template/0" in found
    # Linear is a class of its own.
    assert "blocks/2/TinyLinear" in found


def test_an_underscore_behind_the_family_is_left_out_with_it():
    part = type("Tiny_Branch", (TinyMLP,), {})
    found = names(TinyBlock(), part(nn.Linear(4, 4), nn.ReLU()))
    assert {"Tiny", "blocks/0/Block", "blocks/1/Branch"} <= set(found)


def test_classes_without_a_family_keep_their_names():
    found = names(TinyBlock(), TinyBlock(), nn.Sequential(nn.ReLU(), nn.Tanh()))
    assert {"Tiny", "blocks/2/Sequential"} <= set(found)
    found = names(TinyMLP(nn.Linear(4, 4), nn.ReLU()))
    assert {"TinyForSumsOfAll", "blocks/0/TinyMLP"} <= set(found)


def test_names_that_the_page_shows_whole_stay():
    class TinySum(TinyForSumsOfAll):
        pass

    graph = tbscope.trace(TinySum(TinyBlock(), TinyBlock()), torch.rand(2, 4))
    found = {node.name for node in tbscope.to_graph_def(graph).node}
    assert {"TinySum", "blocks/0/TinyBlock", "blocks/0/mlp/TinyMLP"} <= found


def test_the_family_is_left_out_where_the_page_would_cut_a_name_with_it():
    class WideMMMMMMMMMM(TinyBlock):
        pass

    class WideMLP(TinyMLP):
        pass

    class WideII(TinyMLP):
        pass

    blocks = WideMLP(nn.ReLU(), nn.Tanh()), WideII(nn.ReLU(), nn.Tanh())
    assert "blocks/0/WideMLP" in names(*blocks)
    # It has no more than thirteen letters, which are wide ones.
    assert "blocks/0/MLP" in names(*blocks, WideMMMMMMMMMM())
