"""Placement: nodes drawn elsewhere than where they ran, so that boxes do not form cycles."""

import re
from random import Random

import pytest
import torch
from box_cycles import avoidable_cycles, chunk_cycles
from card_facts import facts
from list_models import (
    Block,
    Borrower,
    Detector,
    Embedding,
    Leaves,
    Shared,
    Skips,
    Turns,
    example,
)
from real_graphs import KINDS, real_graph
from test_lint_own import random_program
from test_random_models import WIDTH
from torch import nn

import tbscope
from tbscope.drawing import layout
from tbscope.drawing.figures import Figure
from tbscope.ir.graph import Graph
from tbscope.ir.placement.partition import Placement
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.series import find_series
from tbscope.pipeline import draw


def drawn(model, inputs, **options):
    """Give the GraphDef of a model, without what only colours."""
    graph = model if isinstance(model, Graph) else tbscope.trace(model, inputs)
    return tbscope.to_graph_def(graph, templates=False, cards=False, **options)


def names(graph_def):
    """Give the names of all that is no circle."""
    return [node.name for node in graph_def.node if "Const" not in node.op]


def cycles(graph_def):
    """Give the boxes that point at others which point at them."""
    return [found.node for found in tbscope.lint(graph_def) if found.rule == "box-cycle"]


def without_callers(graph):
    """Give a graph as of a source that does not tell which function called a module."""
    for call in graph.calls:
        call.run = None
    return graph


class Working(nn.Module):
    """A parent that works before, between and after the members of a list of boxes."""

    def __init__(self, work, times=3):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(times)])
        self.work = work

    def forward(self, x):
        return self.work(self.layers, x)


@pytest.mark.parametrize("kind", [Embedding, Turns, Shared, Skips, Detector])
@pytest.mark.parametrize("style", ["tf", "torch"])
def test_no_box_points_at_another_that_points_at_it(kind, style):
    assert cycles(drawn(*example(kind), style=style)) == []


def test_what_the_parent_does_between_the_members_of_one_list_stands_in_the_list():
    def work(layers, x):
        return layers[2](layers[1](layers[0](x.exp()).neg()).cos()).sin()

    found = names(drawn(Working(work), torch.rand(2, 8)))
    assert {"layers/neg", "layers/cos"} <= set(found)
    # What is before and after all of them stays outside.
    assert {"exp", "sin"} <= set(found)


def summing(times, start=None, told=None):
    """Give a model that adds up what the members of a list gave beside their results."""

    def work(layers, x):
        total = x if start is None else start(x)
        for at, layer in enumerate(layers):
            x = layer(x)
            total = total + x
            told_of = total if at == told else None
            net.told = told_of if told_of is not None else net.told
        return x, total.exp(), net.told

    net = Working(work, times)
    net.told = None
    return net


def sums_in(net):
    found = names(drawn(net, torch.rand(2, 8)))
    return sum(name.startswith("layers/add") for name in found)


def test_a_sum_of_what_many_members_of_a_list_gave_stands_in_the_list():
    assert sums_in(summing(5)) == 5
    # Few lines from the list tell more than a box.
    assert sums_in(summing(4)) == 0


def test_a_sum_may_begin_with_an_operation_that_reads_no_box():
    assert sums_in(summing(6, start=lambda x: x.cos() * 2)) == 6
    lender = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    net = summing(6, start=lender)
    net.lender = lender
    assert sums_in(net) == 0


def test_a_sum_of_which_a_part_is_given_on_stays_outside():
    assert sums_in(summing(7)) == 7
    assert sums_in(summing(7, told=2)) == 0


def test_an_operation_that_also_reads_from_elsewhere_stands_in_the_list_if_it_is_between():
    def work(layers, x):
        return layers[1](layers[0](x) + x) + x

    found = names(drawn(Working(work), torch.rand(2, 8)))
    assert [name for name in found if name.endswith("add") and name.count("/") < 2] == [
        "layers/add",
        "add",
    ]


def test_what_only_members_of_one_list_read_stands_in_it():
    def work(layers, x, most):
        mask = torch.rand(8).exp()
        for at, layer in enumerate(layers):
            x = layer(x, mask) if at < most else layer(x)
        return x

    for most, name in ((1, "layers/rand"), (4, "layers/rand"), (5, "rand")):
        net = Working(lambda layers, x, most=most: work(layers, x, most), times=6)
        found = names(drawn(net, torch.rand(2, 8)))
        # A list in which every member has a line to it would be full of them.
        assert name in found


def test_what_an_output_of_the_model_or_a_module_reads_too_stays_outside():
    def inside(layers, x):
        return layers[0](x).neg() * 0 + layers[1](x)

    def given(layers, x):
        y = layers[0](x).neg()
        return layers[1](x), y

    assert "neg" in names(drawn(Working(given), torch.rand(2, 8)))
    assert "neg" in names(drawn(Working(inside), torch.rand(2, 8)))


def test_members_of_two_lists_that_take_turns_stand_beside_each_other():
    found = names(drawn(*example(Turns)))
    tops = list(dict.fromkeys(name.partition("/")[0] for name in found))
    turns = [f"{stem}.{at}" for at in range(3) for stem in ("resnets", "attentions")]
    assert tops == ["x", *turns, "last", "out"]


def test_lists_that_take_no_turns_keep_their_boxes():
    class InTurn(Turns):
        def forward(self, x):
            for block in (*self.resnets, *self.attentions):
                x = block(x)
            return self.last(x)

    tops = {name.partition("/")[0] for name in names(drawn(InTurn(), torch.rand(2, 8)))}
    assert tops == {"x", "resnets", "attentions", "last", "out"}


def test_only_as_many_lists_as_needed_lose_their_boxes():
    class Between(Turns):
        def forward(self, x):
            # The members of one list run before and after another one, which ends in between.
            x = self.resnets[0](x)
            for block in self.attentions:
                x = block(x)
            return self.last(self.resnets[2](self.resnets[1](x)))

    tops = {name.partition("/")[0] for name in names(drawn(Between(), torch.rand(2, 8)))}
    assert tops == {"x", "resnets.0", "resnets.1", "resnets.2", "attentions", "last", "out"}


def test_leaf_modules_of_two_lists_that_take_turns_stand_beside_each_other_too():
    for how in ({}, {"leaves": "box"}):
        found = {name.partition("/")[0] for name in names(drawn(*example(Leaves), **how))}
        assert {f"{stem}.{at}" for stem in ("convs", "norms") for at in range(3)} <= found
        assert cycles(drawn(*example(Leaves), **how)) == []


def test_leaf_modules_of_one_list_stay_in_it_whatever_runs_between_them():
    def work(layers, x):
        return layers[1](layers[0](x).relu()).relu()

    net = Working(work)
    net.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
    assert {"layers/0", "layers/1", "layers/relu"} <= set(names(drawn(net, torch.rand(2, 8))))


@pytest.mark.parametrize(("times", "beside"), [(33, True), (34, False)])
def test_leaf_modules_stand_beside_each_other_where_they_do_not_fill_their_level(times, beside):
    graph = tbscope.trace(Leaves(times), torch.rand(2, 8))
    for node in graph.nodes:
        # As of a file: nothing tells of a loop.
        node.run = None
    message = drawn(graph, None)
    assert any(name.endswith("convs.11") for name in names(message)) is beside
    assert (cycles(message) == []) is beside


@pytest.mark.parametrize(("times", "beside"), [(99, True), (101, False)])
def test_where_a_loop_is_known_more_leaf_modules_stand_beside_each_other(times, beside):
    found = names(drawn(Leaves(times), torch.rand(2, 8), helpers="none"))
    assert any(name.endswith("convs.11") for name in found) is beside


@pytest.mark.parametrize("between", [True, False])
def test_of_a_list_in_a_list_the_inner_one_keeps_its_box_only_if_its_members_run_in_a_row(between):
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.ModuleList(
                [nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)]), nn.Linear(8, 8)]
            )
            self.ends = nn.ModuleList([nn.Linear(8, 8), Block()])

        def forward(self, x):
            (first, second), other = self.rows
            second, other = (other, second) if between else (second, other)
            return self.ends[1](other(second(first(self.ends[0](x)) * 2)))

    found = set(names(drawn(Nested(), torch.rand(2, 8))))
    assert ({"rows/0.0", "rows/mul", "rows/1", "rows/0.1"} <= found) is between
    assert ({"rows/0/0", "rows/0/mul", "rows/0/1", "rows/1"} <= found) is not between


def test_leaf_modules_beside_each_other_are_not_folded_with_those_of_their_list():
    def by_turns(layers, x):
        for at in range(5):
            x = net.others[at](layers[at](x))
        return x

    def one_by_one(layers, x):
        for module in (*layers, *net.others):
            x = module(x)
        return x

    for work, folded in ((by_turns, False), (one_by_one, True)):
        net = Working(work)
        net.layers, net.others = (
            nn.ModuleList([nn.Linear(8, 8) for _ in range(5)]) for _ in range(2)
        )
        hierarchy = Hierarchy.of(drawn(net, torch.rand(2, 8)))
        assert ("others.4" in hierarchy.items) is not folded
        boxes = (hierarchy.root, *hierarchy.boxes.values())
        assert any(find_series(box) for box in boxes) is folded


@pytest.mark.parametrize(("times", "stepwise"), [(9, False), (10, True)])
def test_lists_that_take_turns_in_a_loop_stand_in_its_rounds_where_they_are_long(times, stepwise):
    found = names(drawn(Leaves(times), torch.rand(2, 8)))
    # What is alone in its part of a list has no box of it.
    assert ({"step.0/convs.0", "step.1/norms.1", "step.1/relu"} <= set(found)) is stepwise
    assert ("convs.1" in found) is not stepwise


def test_a_member_that_a_round_of_a_loop_called_stands_in_its_list_with_what_it_alone_reads():
    def work(layers, x):
        total = 0
        for layer in layers:
            y = layer(x, torch.rand(8).exp())
            total = total + (y * 2).sin().cos().tanh()
        return total

    found = set(names(drawn(Working(work, times=12), torch.rand(2, 8))))
    assert {"step.0/layers/rand", "step.0/layers/0/fc", "step.0/sin"} <= found


class Normed(Turns):
    """Blocks that take turns with a list of leaf modules, or of others like them."""

    def __init__(self, leaves=True):
        super().__init__(2)
        parts = [nn.LayerNorm(8) if leaves else Block() for _ in range(2)]
        self.attentions = nn.ModuleList(parts)


@pytest.mark.parametrize("leaves", [True, False])
def test_blocks_and_leaf_modules_that_take_turns_stand_beside_each_other(leaves):
    boxes = {name.partition("/")[0] for name in names(drawn(Normed(leaves), torch.rand(2, 8)))}
    assert {"resnets.0", "attentions.0", "resnets.1", "attentions.1"} <= boxes


@pytest.mark.parametrize(
    ("times", "most", "parted"), [(3, 1, True), (3, 3, False), (4, 2, True), (4, 3, False)]
)
def test_a_list_keeps_its_box_where_most_of_it_is_called_from_modules_that_it_feeds(
    times, most, parted
):
    class Lender(Turns):
        def forward(self, x):
            for at, (block, other) in enumerate(zip(self.resnets, self.attentions, strict=True)):
                x = block(x)
                if at < most:
                    # A part of it is called again, from outside.
                    x = block.fc(self.last(x))
                x = other(x)
            return x

    graph = without_callers(tbscope.trace(Lender(times), torch.rand(2, 8)))
    boxes = {name.partition("/")[0] for name in names(drawn(graph, None))}
    assert ("resnets.2" in boxes) is parted


def test_a_guest_of_a_list_gives_way_to_a_member_of_its_name():
    def work(layers, x):
        return layers["b"](layers["act"](layers["a"](x)))

    net = Working(work)
    net.layers = nn.ModuleDict({"a": Block(), "act": Block(), "b": Block()})
    net.act = nn.ReLU()
    net.work = lambda layers, x: layers["b"](net.act(layers["act"](net.act(layers["a"](x)))))
    found = names(drawn(net, torch.rand(2, 8)))
    assert "layers/act/fc" in found
    assert {"layers/act.2nd", "layers/act.3rd"} <= set(found)


@pytest.mark.parametrize("owned", [nn.PReLU, lambda: nn.BatchNorm1d(8, affine=False)])
def test_a_leaf_module_without_parameters_and_buffers_is_like_an_operation(owned):
    assert {"layers/act", "layers/act.2nd", "act.3rd"} <= set(names(drawn(*example(Shared))))

    class Owning(Shared):
        def __init__(self):
            super().__init__()
            self.act = owned()

    # A key of the state_dict leads to this one.
    found = names(drawn(Owning(), torch.rand(2, 8)))
    assert {"act", "act.2nd", "act.3rd"} <= set(found)


def test_what_joins_the_stages_of_lists_in_lists_stands_as_deep_as_it_can():
    found = names(drawn(*example(Skips)))
    assert {"add", "ups/add", "ups/0/neg", "ups/1/neg"} <= set(found)


def test_a_true_cycle_of_calls_stays():
    model, x = example(Borrower)
    graph = without_callers(tbscope.trace(model, x))
    assert cycles(drawn(graph, None)) == ["encoder"]


def test_a_part_that_is_called_after_its_module_by_the_parent_stands_with_the_parent():
    graph = tbscope.trace(*example(Borrower))
    assert {"encoder/block/fc", "decoder/fc", "encoder.out"} <= set(names(drawn(graph, None)))
    assert cycles(drawn(graph, None)) == []


@pytest.mark.parametrize("borrowed", ["", "reads", "waits"])
def test_what_is_saved_for_a_backward_pass_is_no_call_from_outside(borrowed):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.Sequential(nn.BatchNorm1d(8))
            self.work = nn.Sequential(nn.Linear(8, 8))

        def forward(self, x):
            x = self.norm(self.work(x)).clone()
            some = x[:2]
            if borrowed == "waits":
                x.mul_(2)
            return self.work[0](some) if borrowed else some

    model = Net()
    with tbscope.record(model) as recording:
        model(torch.rand(4, 8)).sum().backward()
    found = cycles(drawn(without_callers(recording.graph), None))
    assert ("Net/work" in found) == bool(borrowed)


def test_a_part_of_a_module_of_a_list_that_is_called_from_outside_makes_a_cycle():
    def work(layers, x):
        return layers[0].fc(layers[1](layers[0](x)))

    graph = without_callers(tbscope.trace(Working(work), torch.rand(2, 8)))
    assert cycles(drawn(graph, None)) == ["layers/0"]
    # So it is where an operation of the parent of the list is between.
    model = Working(lambda layers, x: layers[0].fc(layers[0](x).neg()))
    graph = without_callers(tbscope.trace(model, torch.rand(2, 8)))
    assert cycles(drawn(graph, None)) == ["layers/0"]


def test_the_scope_of_what_stands_elsewhere_is_still_told():
    graph_def = drawn(*example(Embedding))
    (add,) = [node for node in graph_def.node if node.name == "transformer/add"]
    assert facts(add)["scope"].s == b"Embedding"


def test_a_naming_function_decides_alone():
    def style(scope):
        return "/".join(part.attribute or part.label for part in scope.parts)

    found = names(drawn(*example(Embedding), style=style))
    assert "Embedding/add" in found
    assert "Embedding/transformer/add" not in found


def test_a_member_beside_gives_way_to_a_module_of_its_name():
    class Named(Turns):
        def __init__(self):
            super().__init__(2)
            self.add_module("resnets_0", nn.Linear(8, 8))

        def forward(self, x):
            return super().forward(self.get_submodule("resnets_0")(x))

    found = names(drawn(Named(), torch.rand(2, 8)))
    assert {"resnets_0", "resnets.0/fc", "resnets.1/fc"} <= set(found)


def test_numbers_of_a_list_that_is_no_box_stand_near_it():
    graph = tbscope.trace(*example(Turns))
    figure = Figure("mine", dict.fromkeys(graph.scopes(), 5), as_bytes=1)
    found = draw(graph, [figure])
    told = [node for node in found.graph_def.node if "mine" in node.attr]
    assert {node.name for node in told} >= {"Turns", "resnets.0/Block", "attentions.2/Block"}
    # Nothing stands where the list has no box.
    assert not [node.name for node in told if node.name.startswith("resnets/")]
    (device,) = found.stats.step_stats.dev_stats
    # The boxes of the panel have one byte each.
    stats = [stat for stat in device.node_stats if "__function_library__" not in stat.node_name]
    total = sum(memory.total_bytes for stat in stats for memory in stat.memory)
    assert total == 5 * len(figure.numbers)


@pytest.mark.parametrize("name", KINDS)
def test_no_real_model_has_a_cycle_that_need_not_be(name):
    graph = real_graph(name)
    graph_def = drawn(graph, None)
    assert avoidable_cycles(graph, graph_def) == []
    assert chunk_cycles(graph, graph_def) == []


@pytest.mark.parametrize("seed", range(40))
def test_no_random_model_has_a_cycle_that_need_not_be(seed):
    torch.manual_seed(seed)
    graph = tbscope.trace(random_program(Random(seed)), torch.rand(4, WIDTH))
    assert avoidable_cycles(graph, drawn(graph, None)) == []


@pytest.mark.parametrize("kind", [Embedding, Turns, Shared, Skips, Detector])
def test_the_cycles_of_what_stands_where_it_ran_are_seen(kind, monkeypatch):
    graph = tbscope.trace(*example(kind))
    as_they_ran = Placement(list(graph.scopes()))
    monkeypatch.setattr(layout, "find_placement", lambda graph, **_: as_they_ran)
    assert avoidable_cycles(graph, drawn(graph, None)) != []


@pytest.mark.parametrize("kind", [Embedding, Turns, Leaves, Shared, Skips, Detector, Borrower])
def test_every_key_of_the_state_dict_finds_something(kind):
    model, inputs = example(kind)
    graph_def = drawn(model, inputs)
    for key in model.state_dict():
        assert any(re.search(f"(^|/){key}$", node.name) for node in graph_def.node), key
