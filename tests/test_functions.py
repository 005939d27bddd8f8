"""Functions: which calls share a definition, what its inputs are, and how it is printed."""

import pytest
import torch
from build import GraphBuilder
from expansion import expand
from told import told
from torch import nn

import tbscope
from tbscope.errors import NotFoundError
from tbscope.functions import definition as refs
from tbscope.passes.hide_views import hide_plumbing

X, Y = torch.ones(2, 4), torch.ones(2, 4)


class Block(nn.Module):
    """A layer with an argument that may be None."""

    def __init__(self, width=4):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x, mask=None, *, scale=1.0):
        y = self.fc(x) * scale
        return x + (y if mask is None else y * mask)


class Stack(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Given(nn.Module):
    """Calls one layer in a way of one's choice."""

    def __init__(self, layer, call):
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, *given):
        return self.call(self.layer, *given)


def heads(graph):
    """Give the first line of each definition as it is printed, without its number of uses."""
    return {one.name: str(one).partition(":  #")[0] for one in graph.functions()}


def test_equal_layers_are_uses_of_one_definition():
    functions = tbscope.trace(Stack(*[Block() for _ in range(5)]), X).functions()
    assert [(one.name, len(one.uses)) for one in functions] == [
        ("Linear", 5),
        ("Block", 5),
        ("Stack", 1),
    ]
    uses = functions.find("Block").uses
    assert [use.call.qualified_name for use in uses] == [f"layers.{n}" for n in range(5)]


def test_a_definition_is_printed_like_a_graph():
    graph = tbscope.trace(Given(Block(), lambda layer, x, m: layer(x, mask=m)), (X, Y))
    assert str(graph.functions().find("Block")) == (
        "Block(%x, %mask) -> (%out):  # 1 use\n"
        "  %1 : Float(2, 4) = Linear(%x), scope: Linear[fc]\n"
        "  %2 : Float(2, 4) = mul(%1, 1.0)\n"
        "  %3 : Float(2, 4) = mul(%2, %mask)\n"
        "  %4 : Float(2, 4) = add(%x, %3)\n"
        "  return (%4)"
    )


def test_all_definitions_are_printed_before_their_uses_and_the_graph_last():
    text = str(tbscope.trace(Stack(Block(), Block()), X).functions())
    parts = text.split("\n\n")
    assert [part.partition("(")[0] for part in parts] == ["Linear", "Block", "Stack", "graph"]
    assert parts[2].splitlines()[1:] == [
        "  %1 : Float(2, 4) = Block(%x), scope: ModuleList[layers]/Block[0]",
        "  %2 : Float(2, 4) = Block(%1), scope: ModuleList[layers]/Block[1]",
        "  return (%2)",
    ]


def test_hyperparameters_stand_behind_the_arguments_and_tell_definitions_apart():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4))
    found = heads(tbscope.trace(model, X))
    assert found["Linear"] == "Linear(%input; in_features=4, out_features=4, bias=True) -> (%out)"
    assert found["Linear_2"].endswith("bias=False) -> (%out)")
    assert tbscope.trace(model, X).functions().find("Linear").uses[1].call.qualified_name == "2"


def test_arguments_stand_in_the_order_of_forward_constants_as_they_are():
    def call(layer, x, mask):
        return layer(scale=2, x=layer(x, None), mask=mask)

    found = heads(tbscope.trace(Given(Block(), call), (X, Y)))
    assert found["Block"] == "Block(%x, mask=None) -> (%out)"
    assert found["Block_2"] == "Block_2(%x, %mask, scale=2) -> (%out)"


def test_nests_are_flattened_with_their_paths():
    class Sum(nn.Module):
        def forward(self, state, more):
            return {"sum": state["a"] + state["b"][0], "same": (more, 3)}

    graph = tbscope.trace(
        Given(Sum(), lambda sum_, x, y: sum_({"a": x, "b": [y, None]}, y)["sum"]), (X, Y)
    )
    assert heads(graph)["Sum"] == (
        "Sum(%state.a, %state.b.0, state.b.1=None, %more) -> (%sum, %same.0)"
    )
    (use,) = graph.functions().find("Sum").uses
    # One tensor may be given twice: each argument has its place.
    assert [value.name for value in use.inputs] == ["given.0", "given.1", "given.1"]
    assert [value.producer.op for value in use.outputs] == ["add", "input"]


def test_shapes_may_differ_and_are_printed_where_uses_agree():
    act = nn.ReLU()
    graph = tbscope.trace(lambda x: act(act(x)[:, :2]), X)
    functions = graph.functions()
    (relu,) = functions
    assert len(relu.uses) == 2
    assert "%1 : Float(2, ?) = relu(%input" in str(relu)


def test_a_captured_tensor_is_a_further_input_in_order_of_first_use():
    class Captures(nn.Module):
        def __init__(self, other):
            super().__init__()
            self.held = [other]

        def forward(self, x):
            (other,) = self.held
            return x * other.late + other.weight

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(4, 4)
            self.first, self.second = Captures(self.other), Captures(self.other)

        def forward(self, x):
            self.other.late = self.other(x).mean()
            return self.second(self.first(x.expand(4, 4)))

    graph = tbscope.trace(Net(), torch.ones(1, 4))
    definition = graph.functions().find("Captures")
    assert str(definition).startswith("Captures(%x, captured: %captured, %other.weight) -> (%out)")
    assert [one.kind for one in definition.inputs] == ["argument", "captured", "captured"]
    assert [[value.producer.op for value in use.inputs] for use in definition.uses] == [
        ["expand", "mean", "parameter"],
        ["add", "mean", "parameter"],
    ]


def test_parameters_are_inputs_by_the_names_that_the_module_has_for_them():
    graph = tbscope.trace(Stack(Block(), Block()), X)
    block = graph.functions().find("Block")
    assert [(one.name, one.kind) for one in block.inputs] == [
        ("x", "argument"),
        ("fc.weight", "parameter"),
        ("fc.bias", "parameter"),
    ]
    assert [value.name for value in block.uses[1].inputs[1:]] == [
        "layers.1.fc.weight",
        "layers.1.fc.bias",
    ]


def test_a_module_called_twice_has_two_uses_of_the_same_parameters():
    layer = Block()
    functions = tbscope.trace(Stack(layer, layer), X).functions()
    first, second = functions.find("Block").uses
    assert first.inputs[1:] == second.inputs[1:]
    assert len(functions.find("Linear").uses) == 2


def test_tied_parameters_share_with_layers_that_have_their_own():
    def net(tied):
        blocks = [Block(), Block()]
        if tied:
            blocks[1].fc.weight = blocks[0].fc.weight
        return tbscope.trace(Stack(*blocks), X).functions()

    assert len(net(tied=True).find("Block").uses) == 2
    assert net(tied=True).find("Block").digest == net(tied=False).find("Block").digest
    # For what holds both, it is another thing.
    assert net(tied=True).find("Stack").digest != net(tied=False).find("Stack").digest


def test_what_is_read_outside_though_no_call_gave_it_is_an_output_of_all_uses():
    kept = []

    class Keeps(nn.Module):
        def forward(self, x):
            kept.append(x + 1)
            return kept[-1] * 2

    functions = tbscope.trace(
        Given(Keeps(), lambda keeps, x: keeps(keeps(x)) + kept[0]), X
    ).functions()
    keeps = functions.find("Keeps")
    assert list(keeps.outputs) == ["out", "inner.0"]
    assert [[value.producer.op for value in use.outputs] for use in keeps.uses] == [
        ["mul", "add"],
        ["mul", "add"],
    ]


def test_modules_that_nobody_registers_share_too():
    class Makes(nn.Module):
        def forward(self, x):
            return nn.ReLU()(x) + nn.Tanh()(x)

    functions = tbscope.trace(nn.Sequential(Makes(), Makes()), X).functions()
    assert len(functions.find("Makes").uses) == 2


def test_scopes_by_hand_stand_in_the_body_and_tell_definitions_apart():
    def model(names):
        class Named(nn.Module):
            def forward(self, x, name):
                with tbscope.scope(name):
                    return x + 1

        return tbscope.trace(Given(Named(), lambda named, x: [named(x, name) for name in names]), X)

    assert len(model(["a", "a"]).functions().find("Named").uses) == 2
    assert len(model(["a", "b"]).functions().find("Named").uses) == 1


def test_a_use_is_found_by_the_scope_of_its_call():
    graph = tbscope.trace(Stack(Block(), Block()), X)
    functions = graph.functions()
    call = graph.find("layers.1.fc")
    assert functions.uses[call.scope] is functions.find("Linear").uses[1]


def test_a_definition_is_found_by_its_name_and_near_ones_are_told():
    functions = tbscope.trace(Stack(Block()), X).functions()
    assert functions.find("Block") is functions[1]
    with pytest.raises(NotFoundError, match="did you mean 'Block'"):
        functions.find("Blok")


def test_a_graph_without_calls_has_no_definitions():
    functions = tbscope.trace(lambda x: x + 1, X).functions()
    assert len(functions) == 0
    assert str(functions).startswith("graph(%x : Float(2, 4)):")


def test_calls_that_run_again_in_their_scope_stay_one_use():
    build = GraphBuilder()
    net = build.call("Net")
    x = build.input("x", (1, 2))
    y = build.op("relu", x, scope=net)
    build.call("Net", y, number=1)
    build.output("out", build.op("tanh", y, scope=net))
    (definition,) = build.graph.functions()
    (use,) = definition.uses
    assert [one.number for one in definition.signatures] == [0, 1]
    assert [call.number for call in use.calls] == [0, 1]


def test_what_a_hook_makes_of_an_argument_is_made_in_the_call():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.ReLU()
            self.layer.register_forward_pre_hook(lambda layer, given: (given[0] + 1,))

        def forward(self, x):
            return self.layer(x)

    graph = tbscope.trace(Net(), X)
    call = graph.find("layer")
    # Were the argument told as the hook made it, it would be no input of the call.
    call.arguments = [call.arguments[0]._replace(nest=graph.nodes[-2].outputs[0])]
    assert [node.op for node in graph.nodes[-2:]] == ["add", "relu"]
    relu = graph.functions().find("ReLU")
    assert [one.kind for one in relu.inputs] == ["captured"]
    assert str(relu).startswith("ReLU(input=<made in the call>, captured: %x) -> (%out)")
    assert told(expand(graph.functions())) == told(graph)


def test_calls_that_run_nothing_stand_in_their_order():
    build = GraphBuilder()
    net = build.call("Net")
    x = build.input("x", (1,))
    for name in ("a", "b"):
        build.call(f"Net/Idle[{name}]", x, hyperparameters={"name": name})
    build.output("out", build.op("relu", x, scope=net))
    functions = build.graph.functions()
    lines = [line.strip() for line in str(functions.find("Net")).splitlines()[1:-1]]
    assert lines == [
        "%1 : Float(1) = relu(%x)",
        "Idle(%x), scope: Idle[a]",
        "Idle_2(%x), scope: Idle[b]",
    ]


def test_a_graph_that_passes_have_changed_expands_to_itself():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x):
            y = x * 2
            return self.act(y.view(-1)).sum() + y.sum()

    graph = tbscope.trace(Net(), X).copy()
    hide_plumbing(graph)
    (value,) = (call.arguments[0].nest for call in graph.calls if call.scope.part.label == "ReLU")
    assert value.shape == (8,)
    assert value not in value.producer.outputs
    assert told(expand(graph.functions())) == told(graph)


def test_what_a_call_gives_back_is_named_by_its_place_among_the_results():
    functions = tbscope.trace(Stack(Stack(Block()), Block()), X).functions()
    _, second = functions.find("Stack").steps
    # Not by the way to the addition in the block in the inner stack.
    assert second.inputs[0] == refs.Given((0,), 0)
    use = functions.find("Stack").uses[0]
    assert use.value(second.inputs[0]).producer.op == "add"


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.weight


class Borrower(nn.Module):
    """Reads the parameter of a module beside it, which it does not register."""

    def __init__(self, lender):
        super().__init__()
        self.lenders = [lender]

    def forward(self, x):
        return x + self.lenders[0].weight


def test_a_parameter_of_a_module_whose_name_begins_alike_is_captured():
    net = nn.Sequential()
    lender = Scale()
    net.add_module("fc", Borrower(lender))
    net.add_module("fc2", lender)
    functions = tbscope.trace(net, torch.rand(2, 4)).functions()
    kinds = [one.kind for one in functions.find("Borrower").inputs]
    assert kinds == ["argument", "captured"]
    assert [one.kind for one in functions.find("Scale").inputs] == ["argument", "parameter"]


def test_a_tied_bias_has_the_name_that_the_module_which_reads_it_has_for_it():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.bias = first.bias
    functions = tbscope.trace(nn.Sequential(first, second), X).functions()
    linear = functions.find("Linear")
    assert [one.name for one in linear.inputs] == ["input", "weight", "bias"]
    assert [use.inputs[2].name for use in linear.uses] == ["0.bias", "0.bias"]


def test_what_is_read_outside_of_two_calls_leaves_both():
    kept = []

    class Keeps(nn.Module):
        def forward(self, x):
            kept.append(x + 1)
            return kept[-1] * 2

    graph = tbscope.trace(Given(Stack(Stack(Keeps())), lambda stack, x: stack(x) + kept[0]), X)
    functions = graph.functions()
    names = ("Keeps", "Stack", "Stack_2")
    assert [list(functions.find(name).outputs) for name in names] == [["out", "inner.0"]] * 3
    assert told(expand(functions)) == told(graph)
