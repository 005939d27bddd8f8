"""What boxes of functions and of rounds make of real models: fewer cuts, fewer loose nodes."""

import re

import pytest
from real_graphs import KINDS, real_graph

import tbscope
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.scenes import read_scene

UNCUT = ("LongformerModel", "MambaModel", "EncodecModel", "MixtralForCausalLM")


@pytest.mark.parametrize("name", UNCUT)
def test_levels_of_real_models_need_no_cuts_of_operations(name):
    message = tbscope.to_graph_def(real_graph(name))
    cuts = [box for box in Hierarchy.of(message).boxes if re.search(r"(ops|parts)\.\d+-\d+$", box)]
    assert cuts == []


@pytest.mark.parametrize("name", KINDS)
def test_no_level_of_a_real_model_has_more_than_forty_loose_nodes(name):
    hierarchy = Hierarchy.of(tbscope.to_graph_def(real_graph(name)))
    for box in (hierarchy.root, *hierarchy.boxes.values()):
        scene = read_scene(hierarchy, box)
        loose = [one for one in scene.glyphs if not isinstance(one, Box)]
        assert len(loose) <= 40, box.name
