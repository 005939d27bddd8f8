"""What boxes of functions and of rounds make of real models: fewer cuts, fewer loose nodes."""

import re

import pytest
import torch
from gallery_models import SIGHTS
from looped_models import Solver
from real_graphs import KINDS, real_graph
from scenes import read_scene
from sweeps import sampled
from wide_models import DenseNet

import tbscope
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy
from tests.zoo.models import build, catalogue

OTHERS = (
    *("ProphetNetForConditionalGeneration", "VitsModel", "XLNetModel", "ReformerModel"),
    *("SwitchTransformersForConditionalGeneration", "FalconMambaForCausalLM", "TapasModel"),
    *("DeformableDetrForObjectDetection", "GroundingDinoForObjectDetection", "InformerModel"),
)
UNCUT = ("LongformerModel", "MambaModel", "EncodecModel", "MixtralForCausalLM")


@pytest.mark.parametrize("name", UNCUT)
def test_levels_of_real_models_need_no_cuts_of_operations(name):
    message = tbscope.to_graph_def(real_graph(name))
    cuts = [box for box in Hierarchy.of(message).boxes if re.search(r"(ops|parts)\.\d+-\d+$", box)]
    assert cuts == []


def too_full(hierarchy):
    """Give the boxes in which more than forty nodes stand that are no boxes."""
    boxes = (hierarchy.root, *hierarchy.boxes.values())
    loose = {
        box.name: sum(not isinstance(one, Box) for one in read_scene(hierarchy, box).glyphs)
        for box in boxes
    }
    return [name for name, count in loose.items() if count > 40]


@pytest.mark.parametrize("name", KINDS)
def test_no_level_of_a_real_model_has_more_than_forty_loose_nodes(name):
    assert too_full(Hierarchy.of(tbscope.to_graph_def(real_graph(name)))) == []


@pytest.mark.parametrize("name", sampled(OTHERS, OTHERS[::2]))
def test_no_level_of_other_real_models_has_more_than_forty_loose_nodes_either(name):
    (entry,) = (entry for entry in catalogue() if entry.name == name)
    example = build(entry)
    graph = tbscope.trace(example.model, kwargs=example.inputs)
    assert too_full(Hierarchy.of(tbscope.to_graph_def(graph))) == []


@pytest.mark.parametrize("sight", SIGHTS, ids=lambda sight: sight.name)
def test_nor_has_a_level_of_the_gallery(sight):
    model, inputs, _ = sight.make()
    graph = tbscope.trace(model.eval(), kwargs=inputs)
    assert too_full(Hierarchy.of(tbscope.to_graph_def(graph))) == []


def test_nor_has_a_level_of_a_densenet():
    graph = tbscope.trace(DenseNet(), torch.rand(1, 3, 32, 32))
    assert too_full(Hierarchy.of(tbscope.to_graph_def(graph))) == []


@pytest.mark.parametrize("style", ["tf", "torch"])
@pytest.mark.parametrize("method", ["rk4", "dopri5"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_round_holds_what_a_module_called_for_it_that_another_one_owns(wrapped, method, style):
    graph = tbscope.trace(Solver(method, 6, wrapped), torch.rand(3, 4))
    message = tbscope.to_graph_def(graph, templates=False, root=False, style=style)
    top = {node.name.partition("/")[0] for node in message.node}
    rounds = {f"step.{number}" for number in range(6)}
    ends = {"y", "linspace", "unbind", "stack", "stack.2nd", "out.0", "out.1"}
    assert top - {"Solver", "field", "Field[field]"} == rounds | ends
    assert tbscope.lint(message) == []
