"""Boxes of helper functions and of the rounds of loops."""

import re

import helper_models as models
import pytest
import torch
from helper_models import Decoder, Detector, Helped, Seq2Seq, TimeMix, example
from torch import nn

import tbscope
from tbscope.drawing.placement.function_boxes import FunctionBoxes
from tbscope.drawing.placement.split_levels import is_crowded
from tbscope.ir.placement.partition import Placement
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.level_graph import read_levels
from tbscope.page.templates import Structures
from tbscope.utils.components import find_cycles

ALL = (Decoder, Detector, Helped, Seq2Seq, TimeMix)


def drawn(kind, **drawing):
    return tbscope.to_graph_def(tbscope.trace(*example(kind)), **drawing)


def of_forward(forward, x=None, **drawing):
    """Give the hierarchy of a model with this forward, which has a layer `fc`."""
    net = nn.Module()
    net.fc = nn.Linear(4, 4)
    net.forward = lambda x: forward(net, x)
    graph = tbscope.trace(net, torch.rand(2, 4) if x is None else x)
    return Hierarchy.of(tbscope.to_graph_def(graph, **drawing))


def boxes(hierarchy, above=""):
    box = hierarchy.boxes[above] if above else hierarchy.root
    return [child.label for child in box.children.values() if is_box(child)]


def is_box(child):
    return isinstance(child, Box) and not child.name.startswith("__function")


def test_what_each_run_of_a_helper_did_is_a_box_of_its_name():
    labels = boxes(Hierarchy.of(drawn(Helped)))
    assert labels == [
        *("turn", "turn.2nd", "turn.3rd"),
        *("squash", "squash.2nd", "Scale", "lambda"),
    ]


def test_a_level_with_room_has_no_boxes_of_functions_but_where_all_are_asked_for():
    def forward(net, x):
        return models.squash(net.fc(x)) + models.squash(x)

    assert boxes(of_forward(forward)) == []
    assert boxes(of_forward(forward, helpers="all")) == ["squash", "squash.2nd"]


def test_the_boxes_of_a_function_are_numbered_on_from_a_scope_by_hand_of_its_name():
    def forward(net, x):
        with tbscope.scope("squash"):
            x = x * 2
        return models.squash(net.fc(x)) + models.squash(x)

    assert boxes(of_forward(forward, helpers="all")) == ["squash", "squash.2nd", "squash.3rd"]


def test_none_is_a_box_where_none_is_wanted():
    for kind in ALL:
        names = "\n".join(node.name for node in drawn(kind, helpers="none").node)
        assert not re.search(r"(^|/)(turn|step\.0|recurrence|decode_boxes)/", names, re.M)


def test_a_helper_in_a_helper_is_a_box_in_a_box_where_all_are_asked_for():
    hierarchy = Hierarchy.of(drawn(Helped, helpers="all"))
    assert boxes(hierarchy, "turn.2nd") == ["rotate", "rotate.2nd"]
    assert boxes(Hierarchy.of(drawn(Helped)), "turn.2nd") == []


def test_of_a_decorator_that_runs_nothing_only_the_function_is_told():
    def forward(net, x):
        return models.squash(net.fc(x)) + models.noted(models.squash)(x)

    hierarchy = of_forward(forward, helpers="all")
    assert boxes(hierarchy) == ["squash", "wrapper"]
    assert boxes(hierarchy, "wrapper") == ["squash"]


def test_a_function_that_did_all_of_a_level_and_one_of_a_single_operation_are_no_boxes():
    def alone(net, x):
        return models.squash(models.rotate(x, net.fc(x).sum()))

    def single(x):
        return x + 1

    assert boxes(of_forward(alone, helpers="all")) == ["rotate", "squash"]
    assert boxes(of_forward(lambda net, x: single(net.fc(x)) * 2, helpers="all")) == []


@pytest.mark.parametrize(("inside", "labels"), [(False, ["blocks", "after"]), (True, ["blocks"])])
def test_a_function_that_called_a_part_of_a_list_beside_it_is_no_box(inside, labels):
    net = nn.Module()
    net.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def after(x):
        return (net.blocks[1](x) if inside else x).tanh() * 2

    def forward(x):
        x = net.blocks[0](x)
        return after(x if inside else net.blocks[1](x))

    net.forward = forward
    graph = tbscope.trace(net, torch.rand(2, 4))
    assert boxes(Hierarchy.of(tbscope.to_graph_def(graph, helpers="all"))) == labels


def test_what_a_generator_runs_in_turns_stands_with_whoever_asks_it():
    def forward(net, x):
        return sum(torch.tanh(piece) for piece in models.pieces(net.fc(x)))

    assert boxes(of_forward(forward, helpers="all")) == []


def test_what_is_in_boxes_is_found_once():
    net, inputs = example(Helped)
    graph = tbscope.trace(net, inputs)
    bundler = FunctionBoxes(graph, Placement())
    level = next(graph.scopes())
    assert bundler.add_boxes(level, "functions")
    found = len(bundler.placement.all)
    assert not bundler.add_boxes(level, "functions")
    assert len(bundler.placement.all) == found > 0


def test_equal_boxes_have_one_structure():
    hierarchy = Hierarchy.of(drawn(Helped))
    of = {box.name: structure for box, structure in Structures(hierarchy).of.items()}
    assert of["turn"] is of["turn.2nd"] is of["turn.3rd"]
    assert of["squash"] is of["squash.2nd"] is not of["turn"]
    steps = Hierarchy.of(drawn(Seq2Seq))
    of = {box.name: structure for box, structure in Structures(steps).of.items()}
    assert of["decoder/step.0-29/step.1"] is of["decoder/step.0-29/step.29"]


def test_each_round_of_a_decoders_loop_is_a_step_with_the_modules_that_it_called():
    hierarchy = Hierarchy.of(drawn(Seq2Seq))
    assert boxes(hierarchy, "decoder") == ["step.0-29"]
    for name in ("step.0-29/step.0", "step.0-29/step.17"):
        step = hierarchy.boxes[f"decoder/{name}"]
        assert list(step.children) == ["cat", "attn", "cells", "tanh", "mul", "out"]
        assert list(step.children["cells"].children) == ["0", "1"]


def experts(between):
    """Give experts in a loop, each with so many operations of their parent's around it."""
    net = nn.Module()
    net.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))

    def forward(x):
        found = torch.zeros_like(x)
        for expert in net.experts:
            y = expert(x)
            for _ in range(between - 1):
                y = y * 2
            found = found + y
        return found

    net.forward = forward
    return Hierarchy.of(tbscope.to_graph_def(tbscope.trace(net, torch.rand(2, 4))))


def test_a_loop_over_modules_has_steps_where_much_is_done_between_them():
    steps = [f"step.{at}" for at in range(12)]
    assert not any(label in steps for label in boxes(experts(3)))
    found = experts(4)
    assert boxes(found) == ["step.0-11"]
    assert boxes(found, "step.0-11") == steps
    inside = "step.0-11/step.3/experts.3"
    assert {inside, f"{inside}/weight"} <= found.items.keys()


@pytest.mark.parametrize(("again", "block"), [(False, "list3/0"), (True, "list3.0")])
def test_a_list_that_one_round_called_as_a_whole_stands_in_it_as_a_whole(again, block):
    net = nn.Module()
    for at in range(12):
        blocks = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(1 + again)]
        net.add_module(f"list{at}", nn.ModuleList(blocks))

    def forward(x):
        for at in range(12):
            x = net.get_submodule(f"list{at}.0")(x).tanh() * 2 + 1
            x = x.sin().cos().exp()
        return net.list3[1](x) if again else x

    net.forward = forward
    nodes = tbscope.to_graph_def(tbscope.trace(net, torch.rand(2, 4))).node
    assert f"step.3/{block}/1" in [node.name for node in nodes]


def test_a_loop_that_needs_no_cut_has_no_steps():
    for steps, any_boxes in ((3, False), (5, True)):
        graph = tbscope.trace(Decoder(steps), torch.rand(2, 4))
        names = [node.name for node in tbscope.to_graph_def(graph).node]
        assert any(name.startswith("step.0/") for name in names) is any_boxes


def test_a_loop_over_modules_has_no_steps_as_they_part_it_already():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            layers = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(40)]
            self.layers = nn.ModuleList(layers)

        def forward(self, x):
            for layer in self.layers:
                x = (x + layer(x)) * 2 - 1
            return x

    message = tbscope.to_graph_def(tbscope.trace(Deep(), torch.rand(2, 4)))
    assert not any("step" in node.name for node in message.node)


def test_while_loops_and_loops_in_loops_and_in_comprehensions_have_steps():
    def waiting(net, x):
        left = 120
        while left:
            x = torch.tanh(x) * 2
            left -= 1
        return x

    def nested(net, x):
        for _ in range(40):
            x = x + 1
            for _ in range(3):
                x = torch.tanh(x) * 2
        return x

    def listed(net, x):
        return torch.stack([torch.tanh(x + at) * at for at in range(60)])

    assert "step.0-9" in boxes(of_forward(waiting))
    assert len(of_forward(nested).boxes["step.3"].children) == 7
    (third,) = (box for name, box in of_forward(listed).boxes.items() if name.endswith("step.3"))
    assert list(third.children) == ["add", "tanh", "mul"]


def test_a_second_loop_of_a_level_has_steps_of_its_own():
    def forward(net, x):
        for _ in range(40):
            x = torch.tanh(x) * 2
        for _ in range(40):
            x = torch.sigmoid(x) + 2
        return x

    assert {label.partition(".")[0] for label in boxes(of_forward(forward))} == {"step", "step2"}


def test_a_function_with_modules_in_it_is_a_box_before_loops_are_looked_at():
    def part(net, x):
        for _ in range(20):
            x = torch.tanh(x) * 2 + 1
        return net.fc(x)

    hierarchy = of_forward(lambda net, x: part(net, part(net, x)))
    assert boxes(hierarchy) == ["part", "part.2nd"]


def test_a_users_own_names_have_no_such_boxes():
    def by_path(scope):
        return scope.path

    assert not any("turn" in node.name for node in drawn(Helped, style=by_path).node)
    torch_style = [node.name for node in drawn(Helped, style="torch").node]
    assert any(name.startswith("Helped/turn.1/") for name in torch_style)


@pytest.mark.parametrize("helpers", ["auto", "all"])
@pytest.mark.parametrize("kind", ALL)
def test_no_box_makes_a_cycle_and_every_key_finds_its_node(kind, helpers):
    message = drawn(kind, helpers=helpers)
    hierarchy = Hierarchy.of(message)
    for box in (hierarchy.root, *hierarchy.boxes.values()):
        assert find_cycles(hierarchy.links(box)) == []
    for key in example(kind)[0].state_dict():
        assert any(re.search(f"(^|/){key}$", node.name) for node in message.node), key


@pytest.mark.parametrize("helpers", ["auto", "all"])
@pytest.mark.parametrize("kind", ALL)
def test_the_same_operations_with_the_same_edges_are_drawn(kind, helpers):
    graph = tbscope.trace(*example(kind))
    plain, boxed = (tbscope.to_graph_def(graph, helpers=one) for one in ("none", helpers))
    told = []
    for message in (plain, boxed):
        nodes = [node for node in message.node if not node.name.startswith("__function")]
        places = {node.name: at for at, node in enumerate(nodes)}
        told.append(
            [
                # A parameter is a circle or a node, as its reader has neighbours or none.
                (
                    node.op.removesuffix("Const"),
                    [places.get(text.split(":")[0]) for text in node.input],
                )
                for node in nodes
            ]
        )
    assert told[0] == told[1]


def test_levels_of_helpers_are_drawn_well():
    for kind in ALL:
        hierarchy = Hierarchy.of(drawn(kind))
        assert not any(map(is_crowded, read_levels(hierarchy).values()))


@pytest.mark.parametrize("helpers", [True, False, None, "some", 1])
def test_what_is_none_of_the_words_is_refused(helpers):
    with pytest.raises(tbscope.ArgumentError) as caught:
        drawn(Helped, helpers=helpers)
    assert str(caught.value) == (
        f"helpers cannot be {helpers!r}\n"
        "  why: helpers is 'auto', 'all' or 'none'\n"
        "  fix: helpers='auto', or leave helpers out"
    )


def test_a_hook_beside_forward_makes_no_box_of_forward():
    net = example(Helped)[0]
    net.register_forward_hook(lambda module, given, result: result + 1)
    for helpers in ("auto", "all"):
        graph = tbscope.trace(net, torch.rand(2, 4))
        labels = boxes(Hierarchy.of(tbscope.to_graph_def(graph, helpers=helpers)))
        assert labels[:4] == ["turn", "turn.2nd", "turn.3rd", "squash"]
        assert "forward" not in labels


def test_a_decorator_around_forward_makes_no_box_of_forward():
    class Net(nn.Module):
        @models.noted_method
        def forward(self, x):
            return models.squash(x) * 2

    graph = tbscope.trace(Net(), torch.rand(2, 4))
    assert boxes(Hierarchy.of(tbscope.to_graph_def(graph, helpers="all"))) == ["squash"]


def test_a_box_that_would_read_what_it_has_given_is_left_out():
    class Beside(nn.Module):
        def forward(self, x):
            return x + 1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([Beside(), Beside()])

        def outer(self, x):
            return torch.tanh(self.parts[1](torch.tanh(x) * 2)) * 2

        def forward(self, x):
            return self.outer(self.parts[0](x)) + 1

    message = tbscope.to_graph_def(tbscope.trace(Net(), torch.rand(2, 4)), helpers="all")
    assert not any(node.name.startswith("outer") for node in message.node)


@pytest.mark.parametrize(("times", "labels"), [(9, []), (10, ["squash", "squash.2nd"])])
def test_more_than_thirty_children_of_a_level_are_parted_by_functions(times, labels):
    def forward(net, x):
        for _ in range(times):
            x = models.squash(x)
        return x

    assert boxes(of_forward(forward))[:2] == labels


@pytest.mark.parametrize(
    ("more", "count", "labels"),
    [
        (2, 6, []),
        (3, 6, ["squash", "squash.2nd"]),
        # The entry of the legend is no box beside which operations are.
        (9, 0, []),
    ],
)
def test_more_than_eight_operations_beside_boxes_are_parted_by_functions(more, count, labels):
    def forward(x):
        for part in net.children():
            x = part(x)
        x = models.squash(models.squash(x))
        for _ in range(more):
            x = torch.tanh(x)
        return x

    net = nn.Module()
    for at in range(count):
        setattr(net, "part" + "abcdef"[at], nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    net.forward = forward
    hierarchy = Hierarchy.of(tbscope.to_graph_def(tbscope.trace(net, torch.rand(2, 4))))
    assert boxes(hierarchy)[count:] == labels


def test_a_loop_that_only_calls_a_function_has_a_box_for_each_call():
    def part(net, x):
        return net.fc(torch.tanh(x)) * 2

    def forward(net, x):
        for _ in range(25):
            x = part(net, x)
        return x

    assert boxes(of_forward(forward))[:2] == ["part", "part.2nd"]


@pytest.mark.parametrize(("times", "labels"), [(13, []), (15, ["step.0", "step.1"])])
def test_more_than_thirty_children_of_a_level_are_parted_by_loops(times, labels):
    def forward(net, x):
        for _ in range(times):
            x = torch.tanh(x) * 2
        return x

    assert boxes(of_forward(forward))[:2] == labels


def test_a_function_that_called_modules_is_no_box_where_others_leave_room():
    def part(net, x):
        return net.fc(torch.tanh(x)) * 2

    assert boxes(of_forward(lambda net, x: part(net, part(net, x)) + 1, helpers="all")) == []


def test_a_hook_beside_forward_leaves_loops_their_steps():
    net = Decoder(12)
    net.register_forward_hook(lambda module, given, result: result + 1)
    message = tbscope.to_graph_def(tbscope.trace(net, torch.rand(2, 4)))
    assert any("step.11/" in node.name for node in message.node)


def test_the_entry_of_the_legend_does_not_end_a_row_of_layers_that_take_turns():
    net = nn.Module()
    for at in range(44):
        part = nn.Tanh() if at % 2 else nn.Linear(4, 4)
        setattr(net, "part" + "abcdef"[at // 8] + "abcdefgh"[at % 8], part)

    def forward(x):
        for part in net.children():
            x = part(x)
        return x

    net.forward = forward
    graph = tbscope.trace(net, torch.rand(2, 4))
    hierarchy = Hierarchy.of(tbscope.to_graph_def(graph, cards=False))
    assert 1 < len(boxes(hierarchy)) < 20
    assert len(hierarchy.root.children) < 20
