"""The function library of a GraphDef: which boxes become calls, and in which form."""

import re

import pytest
import torch
from build import GraphBuilder
from looped_models import Sampler
from test_functions import Block, Stack
from torch import nn

import tbscope
from tbscope.errors import ArgumentError
from tbscope.page.ops import is_embedded

X = torch.ones(2, 4)


def drawn(model, functions=True, **options):
    graph = model if isinstance(model, tbscope.Graph) else tbscope.trace(model, X)
    return tbscope.to_graph_def(graph, functions=functions, **options)


def calls(message):
    """Give the calls of a GraphDef, with what they read, by their names."""
    names = {function.signature.name for function in message.library.function}
    return {node.name: list(node.input) for node in message.node if node.op in names}


def hold(message):
    """Hold a GraphDef against the forms that the page can draw (render.ts)."""
    nodes = {node.name: node for node in message.node}
    functions = {one.signature.name: one for one in message.library.function}
    bodies = [
        ({one.name: one for one in function.node_def}, function) for function in functions.values()
    ]
    for inside, function in [(nodes, None), *bodies]:
        given = {arg.name for arg in function.signature.input_arg} if function else set()
        for node in inside.values():
            for text in filter(None, node.input):
                name, _, index = text.removeprefix("^").partition(":")
                assert name in inside or name in given
                source = inside.get(name)
                if source is not None and source.op in functions:
                    assert not text.startswith("^")
                    assert int(index or 0) < len(functions[source.op].signature.output_arg)
            if node.op in functions:
                read = [text for text in node.input if text]
                assert len(read) == len(functions[node.op].signature.input_arg)
                assert not any(text.startswith("^") for text in read)
                sources = [inside.get(text.partition(":")[0]) for text in read]
                assert not any(source is not None and is_embedded(source.op) for source in sources)
    for inside, function in bodies:
        assert inside
        assert not any(is_embedded(node.op) for node in inside.values())
        assert {arg.name for arg in function.signature.output_arg} <= inside.keys()
        assert "/" not in function.signature.name
        assert function.signature.name not in {node.op for node in inside.values()}


def test_equal_boxes_are_calls_of_one_function():
    message = drawn(Stack(Block(), Block(), Block()))
    assert calls(message) == {"layers/0": ["x"], "layers/1": ["layers/0"], "layers/2": ["layers/1"]}
    (function,) = message.library.function
    assert [arg.name for arg in function.signature.input_arg] == ["x"]
    assert {node.name: list(node.input) for node in function.node_def} == {
        "fc": ["x"],
        "mul": ["fc"],
        "add": ["x", "mul"],
        "Block": [],
        "out": ["add"],
    }
    hold(message)


def test_without_the_option_nothing_changes():
    graph = tbscope.trace(Stack(Block(), Block()), X)
    assert tbscope.to_graph_def(graph, functions=False) == tbscope.to_graph_def(graph)
    assert not tbscope.to_graph_def(graph).library.function


def test_a_graph_of_boxes_that_differ_stays_as_it_is():
    graph = tbscope.trace(Stack(Block(), nn.Sequential(nn.Tanh(), nn.Tanh())), X)
    assert tbscope.to_graph_def(graph, functions=True) == tbscope.to_graph_def(graph)


def test_the_outermost_boxes_are_taken_with_all_that_is_in_them():
    model = Stack(Stack(Block(), Block()), Stack(Block(), Block()))
    message = drawn(model)
    assert list(calls(message)) == ["layers/0", "layers/1"]
    (function,) = message.library.function
    assert function.signature.name == "Stack_2"
    assert "layers/1/fc" in {node.name for node in function.node_def}
    hold(message)


@pytest.mark.parametrize(
    "wanted", [{Block}, {"Block"}, ["test_functions.Block"], lambda one: one.name == "Block"]
)
def test_functions_are_chosen_by_class_by_name_or_by_a_function(wanted):
    message = drawn(Stack(Stack(Block(), Block()), Stack(Block(), Block())), wanted)
    assert [one.signature.name for one in message.library.function] == ["Block"]
    assert len(calls(message)) == 4
    hold(message)


def test_functions_are_called_like_their_definitions():
    model = Stack(Block(), Block(), *[nn.Sequential(nn.Tanh(), Block()) for _ in range(2)])
    for layer in model.layers[2:]:
        layer[1].fc = nn.Linear(4, 4, bias=False)
    graph = tbscope.trace(model, X)
    names = [one.name for one in graph.functions() if "Block" in one.name]
    assert names == ["Block", "Block_2"]
    for name in names:
        (function,) = drawn(graph, lambda one, name=name: one.name == name).library.function
        assert function.signature.name == name


def test_nested_functions_are_called_in_the_bodies_of_others():
    message = drawn(Stack(Stack(Block(), Block()), Stack(Block(), Block())), {Block, Stack})
    block, stack = message.library.function
    assert (block.signature.name, stack.signature.name) == ("Block", "Stack_2")
    assert [node.op for node in stack.node_def if node.op == "Block"] == ["Block", "Block"]
    assert list(calls(message)) == ["layers/0", "layers/1"]
    hold(message)


def test_a_row_of_calls_is_kept_from_being_folded():
    message = drawn(Stack(*[Block() for _ in range(5)]))
    assert list(calls(message)) == [f"layers/{number}_" for number in range(5)]
    assert calls(message)["layers/4_"] == ["layers/3_"]
    assert next(iter(calls(drawn(Stack(*[Block() for _ in range(4)]))))) == "layers/0"
    hold(message)


def test_what_uses_tell_differently_is_left_out_of_the_body():
    message = drawn(Stack(Block(), Block()))
    (function,) = message.library.function
    (fc,) = (node for node in function.node_def if node.name == "fc")
    assert "module" not in fc.attr
    assert fc.attr["in_features"].i == 4
    shapes = [node.attr["_output_shapes"] for node in function.node_def if node.name == "out"]
    assert [[dim.size for dim in shape.list.shape[0].dim] for shape in shapes] == [[2, 4]]


def two(inside, between=lambda build, x: x):
    """Give a graph of two calls of a class, whose bodies a function makes."""
    build = GraphBuilder()
    net = build.call("Net")
    x = build.input("x", (2,))
    for name in ("a", "b"):
        scope = build.call(f"Net/Part[{name}]", x)
        y = inside(build, build.op("relu", x, scope=scope), scope)
        build.returns(scope, y)
        x = between(build, build.op("tanh", y, scope=net))
    build.output("out", x)
    return build.graph


@pytest.mark.parametrize("waits", [False, True])
def test_a_box_that_waits_for_what_is_outside_stays_a_box(waits):
    def inside(build, y, scope):
        first = build.node("sin", y, outputs=((2,),), scope=scope.parent)
        given = [first] if waits else []
        return build.op("add", y, 1, scope=scope, control_inputs=given)

    message = drawn(two(inside))
    assert len(calls(message)) == (0 if waits else 2)
    hold(message)


@pytest.mark.parametrize("waits", [False, True])
def test_a_box_that_is_waited_for_stays_a_box(waits):
    def between(build, y):
        (scope,) = {node.scope for node in build.graph.nodes if node is y.producer}
        given = [node for node in build.graph.nodes if node.op == "relu"] if waits else []
        return build.op("sin", y, scope=scope, control_inputs=given)

    message = drawn(two(lambda build, y, scope: build.op("add", y, 1, scope=scope), between))
    assert len(calls(message)) == (0 if waits else 2)
    hold(message)


def test_a_box_whose_parameter_is_read_outside_stays_a_box():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block()])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x) * (layer.fc.bias if self.outside else 2)
            return x

    model = Reads()
    model.outside = False
    assert len(calls(drawn(model))) == 2
    model.outside = True
    message = drawn(model)
    assert calls(message) == {}
    hold(message)


def test_several_outputs_and_inputs_of_one_node_are_kept_apart():
    class Pair(nn.Module):
        def forward(self, a, b):
            a, b = (a * b).chunk(2, -1)
            return a + b, a - b

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Pair(), Pair()

        def forward(self, x):
            a, b = self.second(*self.first(*torch.split(x, 1)))
            return a * b

    message = drawn(Net())
    (second,) = (read for name, read in calls(message).items() if name == "second")
    assert second == ["first", "", "first:1"]
    hold(message)


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [("Block", "'Block'"), (3, "3"), ({3}, "{3}"), (None, "None"), (Block, "Block")],
)
def test_what_tells_no_functions_is_refused(wanted, shown):
    with pytest.raises(ArgumentError, match=rf"functions cannot be .*{re.escape(shown)}"):
        drawn(Stack(Block()), wanted)


def test_a_class_that_was_not_called_is_named():
    with pytest.raises(
        ArgumentError, match="functions names 'Blok', of which the graph has no call"
    ):
        drawn(Stack(Block()), {"Blok", "Block"})


def test_a_function_that_raises_is_named():
    with pytest.raises(ArgumentError, match="the function given as functions raised for the"):
        drawn(Stack(Block()), lambda one: one.nonsense)
    with pytest.raises(ArgumentError, match="the functions function gave 'yes' for the definition"):
        drawn(Stack(Block()), lambda one: "yes")


def test_numbers_and_functions_are_not_drawn_together(tmp_path):
    graph = tbscope.trace(Stack(Block(), Block()), X, profile=True)
    why = "the page has numbers neither for calls of functions nor for boxes around them"
    with pytest.raises(ArgumentError) as caught:
        tbscope.to_graph_def(graph, functions=True)
    assert str(caught.value) == (
        f"functions=True cannot be drawn with times\n  why: {why}\n  fix: leave functions out, or "
        "draw it without its numbers: plain = graph.copy(); plain.profile = None"
    )
    plain = graph.copy()
    plain.profile = None
    assert len(calls(drawn(plain))) == 2
    with tbscope.SummaryWriter(tmp_path) as writer, pytest.raises(ArgumentError) as caught:
        writer.add_overlay("flops", plain, functions={Block})
    assert str(caught.value).startswith("functions={<class 'test_functions.Block'>} cannot be ")
    assert str(caught.value).endswith(f"an overlay\n  why: {why}\n  fix: leave functions out")


@pytest.mark.parametrize(
    "options",
    [{"leaves": "box"}, {"style": "torch"}, {"level": "module"}, {"root": True}, {"cards": False}],
)
def test_every_other_option_goes_with_functions(options):
    message = drawn(Stack(*[Block() for _ in range(6)]), **options)
    assert len(calls(message)) == 6
    hold(message)


def test_boxes_that_are_drawn_otherwise_have_no_function_for_one():
    class Views(nn.Module):
        def forward(self, x):
            return x.view(-1).relu().view(2, 4).sin()

    model = Stack(Views(), Views())
    assert len(calls(drawn(model))) == 2
    message = drawn(model, keep=["layers.0"])
    assert len(message.library.function) == 0
    assert calls(message) == {}


def test_a_box_that_reads_a_circle_outside_stays_a_box():
    class Scaled(nn.Module):
        def __init__(self, held):
            super().__init__()
            self.held = held

        def forward(self, x):
            return (x * self.held[0]).relu() if self.held else x.sin().relu()

    class Net(nn.Module):
        def __init__(self, *, shared):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            held = [self.scale] if shared else []
            self.first, self.second = Scaled(held), Scaled(held)

        def forward(self, x):
            return self.second(self.first(x + self.scale))

    assert len(calls(drawn(Net(shared=False)))) == 2
    message = drawn(Net(shared=True))
    assert calls(message) == {}
    hold(message)


class Hidden(nn.Module):
    """Holds blocks of which nothing is read at the top level."""

    def __init__(self):
        super().__init__()
        self.stack = Stack(Block(), Block())

    def forward(self, x):
        return self.stack(x).tanh()


@pytest.mark.parametrize("hidden", [True, False])
def test_a_call_of_each_box_is_read_at_the_top_level_so_that_the_page_draws_all_in_time(hidden):
    parts = [Hidden(), nn.Tanh()] if hidden else [Block(), Block()]
    message = drawn(Stack(*parts), {Block})
    (card,) = (node for node in message.node if node.op == "NoOp" and "/" not in node.name)
    assert card.name == "Stack"
    last = "layers/0/stack/layers/1"
    assert list(card.input) == ([last] if hidden else [])
    assert calls(message).keys() >= ({last} if hidden else {"layers/0", "layers/1"})
    message = drawn(Stack(*parts), {Block}, cards=False)
    added = [list(node.input) for node in message.node if node.op == "NoOp"]
    assert added == ([[last]] if hidden else [])


def test_a_module_that_is_called_again_is_a_function_with_as_many_calls():
    layer = Block()
    message = drawn(tbscope.trace(lambda x: layer(layer(layer(x))), X))
    assert calls(message) == {"Block": ["x"], "Block.1": ["Block"], "Block.2": ["Block.1"]}
    assert [one.name for one in message.library.function[0].node_def if "fc" in one.name] == ["fc"]
    hold(message)
    assert tbscope.lint(message) == []


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ([0, 0, 1, 1], 4),
        # What the other two calls read stands in the first, or in one that stays a box.
        ([0, 1, 0], 0),
        ([0, 1, 0, 0], 0),
        ([1, 0, 0], 0),
        ([0, 0, 1], 0),
    ],
)
def test_calls_of_one_module_that_differ_share_its_circles_and_stay_boxes(masks, expected):
    first, second = Block(), Block()

    def run(x):
        for with_mask in masks:
            layer = second if with_mask and expected else first
            x = layer(x, x if with_mask else None)
        return x

    message = drawn(tbscope.trace(run, X))
    assert len(calls(message)) == expected
    hold(message)
    assert tbscope.lint(message) == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_box_whose_circles_are_read_by_one_that_stays_a_box_stays_one_too(waits):
    layer = Block()
    graph = tbscope.trace(lambda x: layer(layer(layer(x))).tanh(), X)
    second = [node for node in graph.nodes if node.op == "add"][1]
    graph.nodes[-1].control_inputs = [second] if waits else []
    message = drawn(graph)
    assert len(calls(message)) == (0 if waits else 3)
    hold(message)


class Shifts(nn.Module):
    """Runs one way or another, with the same structure: a view is drawn or is not."""

    def forward(self, x):
        return x.view(-1).relu().view(2, 4).sin()


def test_boxes_of_one_definition_that_are_drawn_in_two_ways_and_read_each_other_are_two_functions():
    model = Stack(*[Shifts() for _ in range(4)])
    message = drawn(model, keep=["layers.0", "layers.2"])
    assert len(message.library.function) == 2
    assert calls(message) == {
        "layers/0": ["x"],
        "layers/1": ["layers/0"],
        "layers/2": ["layers/1"],
        "layers/3": ["layers/2"],
    }
    hold(message)


def test_a_call_that_gives_nothing_tells_no_shapes():
    class Looks(nn.Module):
        def forward(self, x):
            x.sin().cos()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([Looks(), Looks()])

        def forward(self, x):
            for part in self.parts:
                part(x)
            return x.tanh()

    message = drawn(Net(), cards=False)
    assert list(calls(message)) == ["parts/0", "parts/1"]
    (function,) = message.library.function
    assert not function.signature.output_arg
    assert not any("_output_shapes" in node.attr for node in message.node if node.op == "Looks")
    assert tbscope.lint(message) == []


def test_a_function_is_not_called_like_the_operation_of_a_node():
    class Part(nn.Module):
        def __init__(self, *, alone):
            super().__init__()
            self.alone = alone

        def forward(self, x):
            return x.relu() if self.alone else x.sin().relu()

    message = drawn(Stack(Part(alone=True), Part(alone=False), Part(alone=False)))
    assert "Part" in {node.op for node in message.node}
    assert [one.signature.name for one in message.library.function] == ["Part_2"]
    assert list(calls(message)) == ["layers/1", "layers/2"]


@pytest.mark.parametrize("steps", [2, 12])
def test_boxes_stay_where_the_lines_of_their_calls_would_cost_an_output(steps):
    message = drawn(Sampler(steps, guided=True))
    assert tbscope.lint(message) == []
    above = {name.rpartition("/")[0] for name in calls(message)}
    assert ("" in above) is (steps == 2)
