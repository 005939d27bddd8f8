"""Where operations stand: scopes of traced models, held against `named_modules`."""

import pytest
import torch
from torch import nn

import tbscope


def paths(graph, kind="op"):
    return [str(node.scope or "") for node in graph.nodes if node.kind == kind]


class Wrap(nn.Module):
    """A module whose forward is given, with modules as attributes."""

    def __init__(self, run, **modules):
        super().__init__()
        self.run = run
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x):
        return self.run(self, x)


def test_modules_of_two_lists_with_equal_keys_stay_apart():
    net = Wrap(
        lambda self, x: self.q[0](x) + self.k[0](x),
        q=nn.ModuleList([nn.Linear(2, 2)]),
        k=nn.ModuleList([nn.Linear(2, 2)]),
    )
    graph = tbscope.trace(net, torch.randn(1, 2))
    assert paths(graph)[:2] == ["Wrap/ModuleList[q]/Linear[0]", "Wrap/ModuleList[k]/Linear[0]"]


def test_parameters_stand_where_the_operations_stand_that_read_them():
    net = Wrap(lambda self, x: self.m["a"](x), m=nn.ModuleDict({"a": nn.Linear(2, 2)}))
    graph = tbscope.trace(net, torch.randn(1, 2))
    assert set(paths(graph, "parameter")) == set(paths(graph)) == {"Wrap/ModuleDict[m]/Linear[a]"}


def test_a_module_called_again_gets_a_scope_of_its_own():
    net = Wrap(
        lambda self, x: self.f(self.f(x)) + self.block(self.block(x)),
        f=nn.Linear(2, 2),
        block=nn.Sequential(nn.ReLU()),
    )
    graph = tbscope.trace(net, torch.randn(1, 2))
    assert paths(graph) == [
        "Wrap/Linear[f]",
        "Wrap/Linear[f].1",
        "Wrap/Sequential[block]/ReLU[0]",
        "Wrap/Sequential[block].1/ReLU[0]",
        "Wrap",
    ]
    assert len({node for node in graph.nodes if node.name == "f.weight"}) == 1


def test_a_module_with_two_names_stands_under_the_first():
    shared = nn.Linear(2, 2)
    net = Wrap(lambda self, x: self.b(self.a(x)), a=shared, b=shared)
    graph = tbscope.trace(net, torch.randn(1, 2))
    assert paths(graph) == ["Wrap/Linear[a]", "Wrap/Linear[a].1"]
    assert {call.qualified_name for call in graph.calls} <= set(dict(net.named_modules()))


def test_tied_weights_are_one_parameter():
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    graph = tbscope.trace(net, torch.randn(1, 2))
    parameters = [node.name for node in graph.nodes if node.kind == "parameter"]
    assert parameters == ["0.weight"]


def test_keys_of_any_sort_print_and_parse_back():
    keys = ["a b", "x-y", "été", "constructor", "relu", "a/b", "[0]", "50%"]
    net = nn.Sequential()
    for key in keys:
        net.add_module(key, nn.Linear(2, 2))
    graph = tbscope.trace(net, torch.randn(1, 2))
    for key, path in zip(keys, paths(graph), strict=True):
        assert tbscope.Scope.parse(path)[-1].attribute == key
    tbscope.to_graph_def(graph)


def test_a_method_of_a_module_called_without_the_module_stands_in_its_scope():
    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(2, 2)

        def encode(self, x):
            return self.proj(x).relu()

    net = Wrap(lambda self, x: self.lin.forward(self.ae.encode(x)), ae=Coder(), lin=nn.Linear(2, 2))
    graph = tbscope.trace(net, torch.randn(1, 2))
    assert paths(graph) == ["Wrap/Coder[ae]/Linear[proj]", "Wrap/Coder[ae]", "Wrap/Linear[lin]"]
    graph.verify()


def test_a_method_of_the_running_module_stands_in_its_own_call():
    class Loop(nn.Module):
        def step(self, x):
            return x.relu()

        def forward(self, x):
            return self.step(self.step(x))

    graph = tbscope.trace(nn.Sequential(Loop(), Loop()), torch.randn(1, 2))
    assert paths(graph) == ["Sequential/Loop[0]"] * 2 + ["Sequential/Loop[1]"] * 2


def test_recursion_gives_each_call_its_scope():
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, x, times=2):
            return self.lin(x) if times == 0 else self(x, times - 1) + 1

    graph = tbscope.trace(Again(), torch.randn(1, 2))
    graph.verify()
    assert [call.scope.part.label for call in graph.calls] == ["Again"] * 3 + ["Linear"]
    assert len({call.scope.path for call in graph.calls}) == 4


def test_modules_that_nobody_registers_are_drawn_all_the_same():
    net = Wrap(lambda self, x: self.layers[1](self.layers[0](x)))
    net.layers = [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))]
    graph = tbscope.trace(net, torch.randn(1, 2))
    assert paths(graph) == ["Wrap/Linear[?0]", "Wrap/Sequential[?1]/Linear[0]"]


def test_a_module_made_during_forward_stands_under_its_name():
    def run(self, x):
        self.late = nn.Linear(2, 2)
        return self.late(x)

    net = Wrap(run)
    graph = tbscope.trace(net, torch.randn(1, 2))
    assert "Wrap/Linear[late]" in paths(graph)
    assert not hasattr(net, "late")


def test_parametrizations_keep_their_true_path():
    net = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    graph = tbscope.trace(net, torch.randn(1, 2))
    inner = "ModuleDict[parametrizations]/ParametrizationList[weight]/_WeightNorm[0]"
    assert paths(graph) == [
        f"Sequential/ParametrizedLinear[0]/{inner}",
        "Sequential/ParametrizedLinear[0]",
    ]


def test_what_hooks_compute_stands_in_the_scope_of_their_module():
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].register_forward_hook(lambda module, args, result: result * 2)
    net[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    graph = tbscope.trace(net, torch.randn(1, 2))
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["add", "linear", "mul"]
    assert set(paths(graph)) == {"Sequential/Linear[0]"}


def test_modules_that_run_nothing_are_drawn_as_passed_through():
    net = nn.Sequential(nn.Identity(), nn.Dropout(0.5), nn.Linear(2, 2))
    graph = tbscope.trace(net, torch.randn(1, 2))
    assert [node.op for node in graph.nodes if node.kind == "op"] == [
        "Identity",
        "Dropout",
        "linear",
    ]
    reading = {node.op: [value.producer.op for value in node.inputs][:1] for node in graph.nodes}
    assert reading["Dropout"] == ["Identity"]
    assert reading["linear"] == ["Dropout"]


class Passing(nn.Module):
    """Gives back what `choose` takes of its parameter and its arguments, and runs nothing."""

    def __init__(self, choose):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.choose = choose

    def forward(self, *given):
        return self.choose(self.weight, *given)


@pytest.mark.parametrize(
    ("choose", "takes", "read", "gives"),
    [
        (lambda w, x, y: None, 2, ["input", "exp"], 0),
        (lambda w, x, y: y, 2, ["exp"], 1),
        (lambda w, x, y: (y, x), 2, ["exp", "input"], 2),
        (lambda w: w, 0, ["parameter"], 1),
        (lambda w: None, 0, [], 0),
    ],
)
def test_a_module_that_runs_nothing_reads_what_it_gives_back_or_all_that_it_was_given(
    choose, takes, read, gives
):
    def forward(self, x):
        y = x.exp()
        self.inner(*(x, y)[:takes])
        return y

    graph = tbscope.trace(Wrap(forward, inner=Passing(choose)), torch.ones(2))
    found = [node for node in graph.nodes if node.op == "Passing"]
    ops = [[value.producer.op for value in node.inputs] for node in found]
    assert ops == [read]
    assert [len(node.outputs) for node in found] == [gives]


def test_lazy_modules_are_drawn_with_their_sizes_and_stay_lazy():
    net = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    graph = tbscope.trace(net, torch.randn(1, 7))
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["linear", "relu"]
    assert graph.find("0").hyperparameters["in_features"] == 7
    assert net[0].has_uninitialized_params()


def test_scripted_and_traced_modules_are_boxes_with_all_that_runs_in_them():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        traced = torch.jit.trace(nn.Linear(2, 2), torch.randn(1, 2))
    graph = tbscope.trace(nn.Sequential(scripted, traced), torch.randn(1, 2))
    graph.verify()
    assert set(paths(graph)) == {"Sequential/Sequential[0]", "Sequential/Linear[1]"}
    assert {call.scope.path for call in graph.calls} == {"Sequential", *paths(graph)}


def test_compiled_modules_are_drawn_as_eager_under_their_own_names():
    net = nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"), nn.ReLU())
    for model in (net, torch.compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), backend="eager")):
        graph = tbscope.trace(model, torch.randn(1, 2))
        assert paths(graph) == ["Sequential/Linear[0]", "Sequential/ReLU[1]"]
        assert [call.qualified_name for call in graph.calls] == ["", "0", "1"]


@pytest.mark.parametrize("whole", [True, False], ids=["the model", "a part"])
def test_a_compiled_module_of_the_user_has_one_call_that_tells_what_it_was_given(whole):
    inner = Wrap(lambda self, x: self.lin(x) * 2, lin=nn.Linear(2, 2))
    eager = inner if whole else nn.Sequential(inner)
    compiled = torch.compile(inner, backend="eager")
    model = compiled if whole else nn.Sequential(compiled)
    given = torch.randn(1, 2)
    # The first call compiles, the second does not: both are told alike.
    graphs = [tbscope.trace(each, given) for each in (eager, model, model)]
    calls = [
        [
            (str(call.scope), call.qualified_name, call.class_name, str(call.arguments))
            for call in g.calls
        ]
        for g in graphs
    ]
    assert calls[0] == calls[1] == calls[2]
    assert "Wrap" in calls[0][0 if whole else 1][0]
    assert [node.name for graph in graphs for node in graph.inputs] == [
        graphs[0].inputs[0].name
    ] * 3


def test_a_module_compiled_while_it_is_watched_has_one_call():
    with tbscope.record() as recording:
        torch.compile(Wrap(lambda self, x: x * 2), backend="eager")(torch.ones(2))
    assert [call.scope.path for call in recording.graph.calls] == ["Wrap"]


def test_a_compiled_model_takes_inputs_by_the_names_of_its_own_forward():
    model = torch.compile(Wrap(lambda self, x: x * 2), backend="eager")
    assert [node.name for node in tbscope.trace(model, {"x": torch.ones(2)}).inputs] == ["x"]
    with pytest.raises(tbscope.InputError, match=r"Wrap\.forward\(\) needs 'x'"):
        tbscope.trace(model)


def test_a_module_compiled_in_place_is_watched_too():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    net[0].compile(backend="eager")
    graph = tbscope.trace(net, torch.randn(1, 2))
    assert paths(graph) == ["Sequential/Linear[0]", "Sequential/ReLU[1]"]


def test_checkpointed_modules_stand_where_they_are():
    from torch.utils.checkpoint import checkpoint

    net = Wrap(lambda self, x: checkpoint(self.lin, x, use_reentrant=False), lin=nn.Linear(2, 2))
    graph = tbscope.trace(net, torch.randn(1, 2))
    assert paths(graph) == ["Wrap/Linear[lin]"]
