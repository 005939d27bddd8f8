"""Chunks of real models, and of models that are wide: no input stands in one, and no module but
those that their author numbered, all of them, where the page would put what they feed aside.
"""

import re

import pytest
import torch
from gallery_models import SIGHTS
from hypothesis import given, settings
from hypothesis import strategies as st
from real_graphs import KINDS, real_graph
from sweeps import counted
from torch import nn

import tbscope

# A chunk is called by numbers; one of rounds of a loop holds what ran in these.
CHUNK = re.compile(r"(?!step)[^/]*[0-9]+-[0-9]+")
NUMBERED = re.compile("(.*[^0-9])[0-9]+")


def chunks_with_modules(graph):
    """Give the names of modules and inputs that stand in a chunk."""
    message = tbscope.to_graph_def(graph)
    known = [
        node.name for node in message.node if node.op.startswith("Input") or _is_of_module(node)
    ]
    return [name for name in known if any(map(_is_chunk, name.split("/"), name.split("/")[1:]))]


def _is_chunk(label, inside):
    """Tell whether a box is a chunk, and none of numbered modules of which this is one."""
    own = NUMBERED.fullmatch(inside)
    return bool(CHUNK.fullmatch(label)) and not (own and label.startswith(own[1]))


def _is_of_module(node):
    return node.op == "NoOp" or "ParameterConst" in node.op or "class" in node.attr


@pytest.mark.parametrize("name", KINDS)
def test_no_module_of_a_real_model_stands_in_a_chunk(name):
    assert chunks_with_modules(real_graph(name)) == []


@pytest.mark.parametrize("sight", SIGHTS, ids=lambda sight: sight.name)
def test_no_module_of_the_gallery_stands_in_a_chunk(sight):
    model, inputs, _ = sight.make()
    assert chunks_with_modules(tbscope.trace(model.eval(), kwargs=inputs)) == []


class Block(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.fc(x)).relu()


class Wide(nn.Module):
    """Many modules on one level: in a list or by themselves, in a row or side by side."""

    def __init__(self, count, *, leaves, listed, between, reads):
        super().__init__()
        made = [nn.Linear(4, 4) if leaves else Block() for _ in range(count)]
        self.layers = nn.ModuleList(made if listed else [])
        for at, module in enumerate(() if listed else made):
            self.add_module(f"layer{at}", module)
        self.between, self.reads = between, reads

    def forward(self, *inputs):
        found = list(inputs)
        for module in self.layers or self.children():
            if isinstance(module, nn.ModuleList):
                continue
            *others, x = found[-self.reads :] if self.reads else inputs[:1]
            x = module(sum(others, x))
            for _ in range(self.between):
                x = x * 2
            found.append(x)
        return torch.cat(found[-1:] if self.reads else found, -1)


def wide(count, inputs, **how):
    graph_inputs = tuple(torch.rand(1, 4) for _ in range(inputs))
    return tbscope.trace(Wide(count, **how), graph_inputs)


@settings(max_examples=counted(25, 10), deadline=None)
@given(
    count=st.sampled_from([10, 20, 35]),
    inputs=st.sampled_from([1, 4, 150]),
    leaves=st.booleans(),
    listed=st.booleans(),
    between=st.sampled_from([0, 1, 4]),
    reads=st.sampled_from([0, 1, 3]),
)
def test_no_module_and_no_input_of_a_wide_model_stands_in_a_chunk(count, inputs, **how):
    assert chunks_with_modules(wide(count, inputs, **how)) == []


def test_layers_between_which_their_parent_adds_are_not_folded_and_keep_their_lines():
    how = {"leaves": True, "listed": True, "reads": 1}
    for between, op in ((1, "Linear[0]"), (0, "Linear")):
        message = tbscope.to_graph_def(wide(20, 1, between=between, **how))
        assert {node.op for node in message.node if node.name == "layers/0"} == {op}
        assert tbscope.lint(message) == []


def test_two_thousand_layers_are_parted_by_their_numbers():
    model = nn.Sequential(*(nn.Linear(2, 2) if at % 2 else nn.ReLU() for at in range(2000)))
    names = {
        node.name for node in tbscope.to_graph_def(tbscope.trace(model, torch.rand(1, 2))).node
    }
    inside = {"0-99/0-9_ReLU/0", "0-99/40-49_ReLU/49", "1900-1999/1990-1999/1999"}
    assert inside <= names, sorted(names)[:9]


class Heads(nn.Module):
    """Modules in attributes of their own, of one input, that are joined again."""

    def __init__(self, names, leaves=False):
        super().__init__()
        self.found = []
        for name in names:
            self.add_module(name, nn.Linear(4, 4) if leaves else Block())
            self.found.append(getattr(self, name))
        self.last = nn.Linear(4 * len(names), 4)

    def forward(self, x):
        x = x * 2
        return self.last(torch.cat([module(x) for module in self.found], -1))


def boxes_at_top(model):
    message = tbscope.to_graph_def(tbscope.trace(model, torch.rand(2, 4)), templates=False)
    return {node.name.partition("/")[0] for node in message.node}, message


@pytest.mark.parametrize(("count", "leaves"), [(16, False), (16, True), (90, True), (130, False)])
def test_numbered_modules_side_by_side_are_a_box_where_the_page_would_lose_what_they_feed(
    count, leaves
):
    names = [f"head_{at}" for at in range(count)]
    found, message = boxes_at_top(Heads(names, leaves))
    box = f"head_0-{count - 1}"
    assert found == {"x", "mul", box, "cat", "last", "out", "Heads"}
    inside = {part for node in message.node for part in node.name.split("/")[1:]}
    assert set(names) <= inside
    # More than forty are boxes of ten in it.
    assert ("head_0-9" in inside) is (count > 100)
    assert tbscope.lint(message) == []


@pytest.mark.parametrize("leaves", [False, True])
def test_in_their_box_every_key_is_found(leaves):
    outer = nn.Sequential(Heads([f"head_{at}" for at in range(40)], leaves), nn.ReLU())
    _, message = boxes_at_top(outer)
    names = [node.name for node in message.node]
    for key in outer.state_dict():
        assert any(re.search(key, name) for name in names)


@pytest.mark.parametrize(
    ("names", "box"),
    [
        # Few shapes: the page puts nothing aside.
        ([f"head_{at}" for at in range(8)], None),
        # Not numbered one by one.
        ([f"head_{2 * at}" for at in range(16)], "head_0-30"),
        # Called by words.
        ([f"head_{at}_" for at in range(16)], "head_0_-head_15_"),
    ],
)
def test_other_modules_side_by_side_are_in_a_box_only_where_an_output_would_be_lost(names, box):
    found, message = boxes_at_top(Heads(names))
    assert found - {"x", "mul", "cat", "last", "out", "Heads"} == ({box} if box else set(names))
    assert tbscope.lint(message) == []


def test_nor_are_numbered_modules_each_of_which_feeds_something_else():
    class Conditioned(Heads):
        def forward(self, x):
            time = x * 2
            for module in self.found:
                x = (x + module(time)).relu()
            return x

    names = [f"time_{at}" for at in range(12)]
    found, _ = boxes_at_top(Conditioned(names))
    assert set(names) <= found


def test_rounds_of_a_loop_that_would_fill_their_level_are_a_box_without_what_is_around_them():
    class Scan(nn.Module):
        def forward(self, x):
            x = x.repeat(6, 1)
            a, b = torch.exp(x), x.sin()
            state, found = x[0] * 0, []
            for at in range(12):
                state = a[at] * state + b[at] * x[at]
                found.append(state.tanh())
            return torch.stack(found) + x

    found, _ = boxes_at_top(Scan())
    assert found == {"x", "repeat", "exp", "sin", "mul", "step.0-11", "stack", "add", "out", "Scan"}
