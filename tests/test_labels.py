"""Modules in lists tell their class in their names, on request, and are found as before."""

import re

import pytest
import torch
from real_graphs import KINDS, real_graph
from torch import nn

import tbscope


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x).relu()


class Net(nn.Module):
    """Lists of boxes and of leaves, one in the other, and an attribute that begins with a digit."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleList([Block()]), nn.Sequential(Block(), nn.ReLU())])
        self.parts = nn.ModuleDict({"2d": nn.Linear(4, 4), "7": nn.Linear(4, 4)})

    def forward(self, x):
        x = self.blocks[0][0](self.blocks[0][0](x))
        return self.parts["7"](self.parts["2d"](self.blocks[1](x)))


def names(model, **options):
    message = tbscope.to_graph_def(tbscope.trace(model, torch.ones(2, 4)), **options)
    assert tbscope.lint(message) == []
    return [node.name for node in message.node if "__function_library__" not in node.name]


def test_every_module_tells_its_class():
    found = names(Net(), labels="class", cards=False)
    assert [name for name in found if name.endswith(("relu", "1_ReLU", "7_Linear"))] == [
        "blocks_ModuleList/0_ModuleList/0_Block/relu",
        "blocks_ModuleList/0_ModuleList/0_Block.2nd/relu",
        "blocks_ModuleList/1_Sequential/0_Block/relu",
        "blocks_ModuleList/1_Sequential/1_ReLU",
        "parts_ModuleDict/7_Linear",
    ]
    # The second is in the search for `parts.2d.weight`, too.
    assert "parts_ModuleDict/2d_Linear/parts.2d.weight" in found


def test_styles_that_have_names_of_their_own_stay_as_they_are():
    assert "blocks/1/0/relu" in names(Net(), labels="name")
    torchs = [names(Net(), style="torch", labels=labels) for labels in ("name", "class")]
    assert torchs[0] == torchs[1]
    own = [
        names(Net(), style=lambda scope: f"{scope}", labels=labels) for labels in ("name", "class")
    ]
    assert own[0] == own[1]


def test_a_long_list_of_modules_with_classes_is_boxed_like_one_without():
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(50)))
    found = names(layers, labels="class", cards=False, templates=False)
    assert "0-9_Linear/3_Linear/3.weight" in found


def test_no_box_around_everything_is_needed_for_boxes_with_a_number():
    blocks = nn.Sequential(Block(), Block())
    assert "Sequential/0/fc" in names(blocks)
    assert "0_Block/fc_Linear" in names(blocks, labels="class")
    assert "Sequential/0_Block/fc_Linear" in names(blocks, labels="class", root=True)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[Block() for _ in range(4)])

    def forward(self, x):
        return self.layers(x) + 1


def test_a_stack_of_blocks_tells_their_class():
    assert "layers.0-3" in names(Deep(), level="overview")
    assert "layers.0-3_Block" in names(Deep(), labels="class", level="overview")


def test_members_of_a_list_that_stand_beside_each_other_tell_their_class():
    class Crossing(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])
            self.between = nn.Linear(4, 4)

        def forward(self, x):
            return self.blocks[1](self.between(self.blocks[0](x)))

    assert "blocks.1/relu" in names(Crossing())
    assert "blocks_ModuleList.1_Block/relu" in names(Crossing(), labels="class")


@pytest.mark.parametrize("name", KINDS)
def test_a_search_finds_every_parameter_that_it_finds_without(name):
    graph = real_graph(name)
    plain, labelled = (
        [node.name for node in tbscope.to_graph_def(graph, labels=labels).node]
        for labels in ("name", "class")
    )
    assert len(plain) == len(labelled)
    keys = [node.name for node in graph.nodes if node.kind in ("parameter", "buffer")]
    found = [[key for key in keys if re.search(key, "\n".join(all_))] for all_ in (plain, labelled)]
    assert found[0] == found[1]
    assert len(found[1]) > len(keys) * 0.9
    faults = [tbscope.lint(tbscope.to_graph_def(graph, labels=one)) for one in ("name", "class")]
    assert len(faults[0]) == len(faults[1])


def test_other_labels_are_refused():
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.to_graph_def(tbscope.Graph("Net"), labels="classes")
    assert str(caught.value) == (
        "labels cannot be 'classes'\n"
        "  why: labels is 'name' or 'class'\n"
        "  fix: labels='name', or leave labels out"
    )
