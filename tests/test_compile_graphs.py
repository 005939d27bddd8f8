"""What torch.compile captures: the graphs tell what an eager call of the model tells."""

import functools
import importlib

import pytest
import torch
from torch import nn

import tbscope
from tests.agreement import check_whole, disagreements, parameters_read
from tests.compiled_models import Branches, Linear, Prints, Repeats
from tests.program_models import MODELS, TRANSFORMERS, example
from tests.sweeps import sampled

pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.ones(2, 4)
# What the compiler leaves to Python, unless it is told otherwise.
WHOLE = [name for name in MODELS if name != "lstm"]
# It runs through a set in Python, in an order that the compiler does not keep.
REAL = [name for name in TRANSFORMERS if name != "ModernBertModel"]


def ops(graph):
    return [node.op for node in graph.nodes if node.kind == "op"]


@pytest.mark.parametrize("name", WHOLE)
def test_a_captured_model_tells_what_an_eager_call_tells(name):
    model, args, kwargs, eager = example(name)

    graphs = tbscope.compile_graphs(model, args, kwargs=kwargs, training=None)

    (graph,) = graphs.values()
    check_whole(graph)
    assert disagreements(eager, graph) == {}
    assert {node.name for node in graph.inputs} == {node.name for node in eager.inputs}
    assert [each.name for each in graph.outputs] == [each.name for each in eager.outputs]
    assert tbscope.costs(graph).total.flops == tbscope.costs(eager).total.flops
    assert graphs.breaks == ()
    assert graphs.overview is graph


@pytest.mark.parametrize("name", sampled(REAL, REAL[::3]))
def test_a_real_model_tells_what_an_eager_call_tells(name):
    model, args, kwargs, eager = example(name)

    graphs = tbscope.compile_graphs(model, args, kwargs=kwargs, training=None)

    (title,) = graphs
    assert title == f"0 {type(model).__name__}.forward"
    assert disagreements(eager, graphs[title]) == {}


def test_an_lstm_is_told_once_the_compiler_takes_it():
    model, args, kwargs, eager = example("lstm")
    config = importlib.import_module("torch._dynamo").config

    with config.patch(allow_rnn=True):
        graphs = tbscope.compile_graphs(model, args, kwargs=kwargs, training=None)

    assert disagreements(eager, graphs.overview) == {}


def test_a_model_that_is_left_to_python_is_a_break_between_its_inputs_and_results():
    model, args, _, _ = example("lstm")

    graphs = tbscope.compile_graphs(model, args)

    assert list(graphs) == []
    assert [gap.skipped for gap in graphs.breaks] == ["Recurrent.forward"]
    alone = tbscope.compile_graphs(nn.LSTM(4, 2), X)
    assert [gap.skipped for gap in alone.breaks] == ["LSTM.forward"]
    (node,) = [node for node in graphs.overview.nodes if node.kind == "op"]
    assert (node.op, node.attributes["not_compiled"]) == ("graph_break", "Recurrent.forward")
    assert [value.name for value in node.inputs] == ["tokens"]
    assert [output.value.shape for output in graphs.overview.outputs] == [(2, 5, 2), (1, 2, 7)]


# -- graph breaks ----------------------------------------------------------------------------


def test_a_break_stands_between_its_graphs_with_its_reason_and_line():
    graphs = tbscope.compile_graphs(Prints(), X)

    check_whole(graphs.overview)
    assert [title.partition(" line")[0] for title in graphs] == [
        "0 Prints.forward",
        "1 Prints.forward, from",
    ]
    (gap,) = graphs.breaks
    line = Prints.forward.__code__.co_firstlineno + 2
    assert (gap.source.line, gap.after, gap.skipped) == (line, 1, None)
    assert "print" in gap.reason
    node = next(node for node in graphs.overview.nodes if node.op == "graph_break")
    assert (node.source, node.attributes) == (gap.source, {"reason": gap.reason})
    before, after = node.inputs[0].producer, graphs.overview.find("last").scope
    assert before.scope.qualified_name == "first"
    assert after.parent.part.label.startswith("1 Prints forward")
    relu = next(each for each in graphs.overview.nodes if each.op == "relu")
    assert (relu.inputs[0].producer, relu.control_inputs) == (before, [node])


@pytest.mark.parametrize("model", [Prints(), Branches(), Repeats()])
def test_the_overview_of_a_broken_model_reads_the_parameters_of_its_graphs(model):
    eager = tbscope.trace(model, X)

    graphs = tbscope.compile_graphs(model, X)

    check_whole(graphs.overview)
    for graph in graphs.values():
        check_whole(graph)
    told = {}
    for graph in graphs.values():
        for path, names in parameters_read(graph).items():
            told.setdefault(path, set()).update(names)
    of_eager = parameters_read(eager)
    assert told
    assert all(names == of_eager[path] for path, names in told.items())
    overview = set().union(*parameters_read(graphs.overview).values())
    assert overview == set().union(*told.values())


def test_what_flows_between_graphs_is_told_by_the_tensors_that_flow():
    def model(x, other):
        y = x.sin()
        torch._dynamo.graph_break()
        return {"both": y + other, "given": x}

    overview = tbscope.compile_graphs(model, (torch.ones(2), torch.zeros(2))).overview

    add = next(node for node in overview.nodes if node.op == "add")
    assert [value.producer.op for value in add.inputs] == ["sin", "input"]
    assert add.inputs[1].name == "other"
    assert {each.name: each.value.producer.op for each in overview.outputs} == {
        "both": "add",
        "given": "input",
    }


def test_each_break_before_the_first_graph_is_a_node_of_its_own():
    block = Prints()

    def model(x):
        print("before")
        for _ in range(2):
            x = block(x)[:, :1] + x
        return x

    graphs = tbscope.compile_graphs(model, X)

    first, second, third = graphs.breaks
    assert [gap.after for gap in graphs.breaks] == [0, 0, 1]
    assert second.source.line == third.source.line != first.source.line
    assert first.skipped is None
    assert second.skipped.startswith("model, from line")
    nodes = [node for node in graphs.overview.nodes if node.op == "graph_break"]
    assert [value.name for value in nodes[0].inputs] == ["x"]
    assert [node.control_inputs for node in nodes[1:]] == [[nodes[0]], [nodes[1]]]


def test_a_choice_by_a_tensor_and_a_number_read_are_breaks():
    graphs = tbscope.compile_graphs(Branches(), X)

    reasons = [gap.reason for gap in graphs.breaks]
    assert reasons[0] == "Data-dependent branching: Python decides by the value of a tensor"
    assert "item()" in reasons[1]
    assert len(graphs) == 3


def test_what_python_runs_without_a_break_gives_what_later_graphs_take():
    graphs = tbscope.compile_graphs(Repeats(), X)

    overview = graphs.overview
    gap = next(node for node in overview.nodes if node.op == "graph_break")
    first = next(node for node in overview.nodes if node.op == "linear")
    assert (first.inputs[0].name, first.control_inputs) == ("x", [gap])
    assert graphs.breaks[0].skipped == "Repeats.forward"
    assert [each.value.producer.op for each in overview.outputs] == ["python"]
    assert any("it ran 4 times" in note.text for note in graphs["0 Prints.forward"].notes)


def test_a_function_that_fits_no_more_is_compiled_again_with_the_guard_that_failed():
    block = Prints()

    def model(x):
        return [block(each) for each in (x, x[:1])]

    graphs = tbscope.compile_graphs(model, X, dynamic=False)

    first, again = [title for title in graphs if title.endswith("Prints.forward")]
    assert "size mismatch at index 0. expected 2, actual 1" in graphs.recompiled[again]
    assert first not in graphs.recompiled
    assert f"compiled again: {graphs.recompiled[again]}" in str(graphs)
    assert any(graphs.recompiled[again] in note.text for note in graphs[again].notes)
    assert [graphs[title].inputs[0].outputs[0].shape for title in (first, again)] == [
        (2, 4),
        (1, 4),
    ]


def test_fullgraph_makes_an_error_of_a_break():
    with pytest.raises(tbscope.TraceError) as caught:
        tbscope.compile_graphs(Prints(), X, fullgraph=True)

    what, why, fix = str(caught.value).split("\n")
    (gap,) = tbscope.compile_graphs(Prints(), X).breaks
    assert what == f"Prints cannot be compiled as one graph, at {gap.source}"
    assert "print" in why
    assert fix == "  fix: leave fullgraph=True out to see the graphs before and behind that line"
    assert len(tbscope.compile_graphs(Linear(), X, fullgraph=True)) == 1


# -- what is compiled ------------------------------------------------------------------------


def test_a_function_names_the_modules_that_it_finds_by_its_variables():
    net, scale = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.tensor([2.0])

    graph = tbscope.compile_graphs(lambda x: net(x) * scale, X).overview

    check_whole(graph)
    assert graph.name == "lambda"
    assert [call.scope.path for call in graph.calls] == [
        "lambda/Sequential[net]",
        "lambda/Sequential[net]/Linear[0]",
        "lambda/Sequential[net]/ReLU[1]",
    ]
    kinds = {node.name: node.kind for node in graph.nodes if node.kind != "op"}
    assert kinds == {
        "x": "input",
        "net.0.weight": "parameter",
        "net.0.bias": "parameter",
        "scale": "constant",
    }


def test_a_function_that_is_given_a_module_first_is_no_method_of_it():
    def work(module, x):
        return module(x) * 2

    assert list(tbscope.compile_graphs(work, (nn.ReLU(), X))) == ["0 work"]


def test_methods_partials_and_compiled_models_are_captured_as_their_model_is():
    model = Linear()
    whole = tbscope.compile_graphs(model, X).overview

    ways = [
        tbscope.compile_graphs(torch.compile(model), X),
        tbscope.compile_graphs(model.forward, X),
        tbscope.compile_graphs(functools.partial(model, X)),
        tbscope.compile_graphs(torch.compile(model.forward), X),
    ]

    assert str(ways[0].overview) == str(ways[1].overview) == str(whole)
    assert {tuple(ops(way.overview)) for way in ways} == {("linear", "relu", "add")}


def test_open_sizes_are_told_by_their_formulas():
    class Net(Linear):
        def forward(self, x):
            return super().forward(x).reshape(-1, x.shape[0] * 2)

    x = torch.ones(3, 4)
    graph = tbscope.compile_graphs(Net(), x, dynamic=True).overview

    check_whole(graph)
    assert [node.outputs[0].shape for node in graph.inputs] == [(None, 4)]
    reshape = next(node for node in graph.nodes if node.op == "reshape")
    assert reshape.attributes["symbolic_shape"].startswith("(2, 2*s")
    assert str(reshape.arguments[2].nest.text).startswith("2*s")
    closed = tbscope.compile_graphs(Net(), x, dynamic=False).overview
    assert closed.inputs[0].outputs[0].shape == (3, 4)


@pytest.mark.parametrize("training", [True, False])
def test_modules_run_in_the_mode_that_is_asked_for(training):
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))

    graph = tbscope.compile_graphs(model, X, training=training).overview

    assert [call.training for call in graph.calls] == [training] * 3
    assert any(node.random for node in graph.nodes) is training
    assert graph.find("1").hyperparameters["p"] == 0.5


class Square(torch.autograd.Function):
    """A function with a backward pass of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]


def test_of_a_function_with_a_backward_pass_of_its_own_the_forward_pass_is_told():
    class Net(Linear):
        def forward(self, x):
            return Square.apply(self.fc(x))

    graph = tbscope.compile_graphs(Net(), X, grad=True).overview

    check_whole(graph)
    linear, mul = [node for node in graph.nodes if node.kind == "op"]
    assert (mul.op, mul.inputs) == ("mul", [*linear.outputs] * 2)
    assert graph.outputs[0].value is mul.outputs[0]


class Named(nn.Module):
    """Has parts and tensors whose names are no identifiers."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({key: nn.Linear(4, 4) for key in ("conv-1", "conv-2", "a b")})
        self.add_module("a/b", nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"c-d": nn.ReLU()})))
        self.register_parameter("p/q", nn.Parameter(torch.ones(4)))

    def forward(self, x):
        for part in self.parts.values():
            x = part(x)
        inner = getattr(self, "a/b")
        return inner[1]["c-d"](inner[0](x)) * getattr(self, "p/q")


class Keeps(nn.Module):
    """Sets a buffer, and returns inputs, a parameter and one result twice."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("last", torch.zeros(4))

    def forward(self, a, unread, b, again=None):
        self.last = self.last + b
        y = b * a
        return y, {"same": y}, self.weight, b


@pytest.mark.parametrize(
    ("model", "inputs", "kwargs"),
    [
        (Named(), X, None),
        (Keeps(), (torch.ones(4), torch.ones(2), torch.zeros(4)), None),
        (Keeps(), [torch.ones(4)] * 3, {"again": torch.zeros(1)}),
        (Keeps(), {"b": torch.ones(4), "unread": torch.ones(2)}, {"a": torch.ones(4)}),
    ],
)
def test_a_whole_capture_prints_as_a_trace(model, inputs, kwargs):
    graphs = tbscope.compile_graphs(model, inputs, kwargs=kwargs)

    assert str(graphs.overview) == str(tbscope.trace(model, inputs, kwargs=kwargs))


def test_inputs_are_made_of_sizes():
    graph = tbscope.compile_graphs(Linear(), input_size=(2, 4)).overview

    assert str(graph) == str(tbscope.trace(Linear(), input_size=(2, 4)))


# -- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fullgraph", [True, False])
def test_what_the_model_raises_is_told_as_elsewhere(fullgraph):
    given = torch.ones(2, 9)
    with pytest.raises(RuntimeError) as elsewhere:
        tbscope.trace(Linear(), given)

    with pytest.raises(RuntimeError) as caught:
        tbscope.compile_graphs(Linear(), given, fullgraph=fullgraph)

    assert str(caught.value) == str(elsewhere.value)
    assert "Linear/Linear[fc]" in str(caught.value)


def test_an_error_of_the_users_own_class_reaches_the_user():
    class OwnError(Exception):
        pass

    def model(x):
        torch._dynamo.graph_break()
        raise OwnError("mine")

    with pytest.raises(tbscope.TraceError, match="mine") as caught:
        tbscope.compile_graphs(model, X)
    assert isinstance(caught.value.__cause__, OwnError)


def test_what_runs_nothing_has_no_graph():
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.compile_graphs(lambda x: x, X)

    assert str(caught.value) == (
        "torch.compile captured no graph of lambda\n"
        "  why: no function of the user's with an operation on a tensor ran\n"
        "  fix: tbscope.trace(lambda, ...) draws the model without it"
    )


class Twins(nn.Module):
    """Calls one block by two names."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.SiLU())
        self.blocks = nn.ModuleList([self.block, self.block])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_a_module_that_is_called_by_two_names_is_called_twice():
    model, x = Twins(), torch.ones(2, 4)
    graph = tbscope.compile_graphs(model, x).overview
    eager = tbscope.trace(model, x)
    assert [str(call.scope) for call in graph.calls] == [str(call.scope) for call in eager.calls]
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
