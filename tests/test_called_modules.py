"""Each module that is called is seen, by whatever way its inside runs."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import called_models
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tbscope
from tbscope.sources.eager.watch.watch import deep_enough
from tbscope.sources.torch.source_location import OWN_FILES
from tests.real_graphs import origins

X = torch.ones(2, 3)
LOOSE = nn.Linear(3, 3)


def scope_of_ops(graph):
    return [(node.op, str(node.scope)) for node in graph.nodes if node.kind == "op"]


def drawn(graph, **options):
    return {node.name: list(node.input) for node in tbscope.to_graph_def(graph, **options).node}


class Calling(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Sharing(nn.Module):
    """Holds a layer that one of its parts calls."""

    def __init__(self, deep=False):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.part = Calling(Calling(self.layer)) if deep else Calling(self.layer)

    def forward(self, x):
        return self.part(x).relu()


def test_a_module_whose_only_child_stands_elsewhere_gives_what_it_gave():
    graph = tbscope.trace(Sharing(), X)
    graph.verify()
    assert scope_of_ops(graph) == [
        ("linear", "Sharing/Linear[layer]"),
        ("Calling", "Sharing/Calling[part]"),
        ("relu", "Sharing"),
    ]
    nodes = drawn(graph)
    assert nodes["part"] == ["layer"]
    assert nodes["relu"] == ["part"]


def test_each_of_several_such_modules_is_there():
    graph = tbscope.trace(Sharing(deep=True), X)
    names = [str(scope) for op, scope in scope_of_ops(graph) if op == "Calling"]
    assert names == ["Sharing/Calling[part]/Calling[inner]"]
    nodes = drawn(graph, leaves="box")
    assert nodes["part/inner/Calling"] == ["layer/linear"]


def test_a_module_with_something_of_its_own_has_nothing_more():
    graph = tbscope.trace(Calling(Calling(nn.Linear(3, 3))), X)
    assert [op for op, _ in scope_of_ops(graph)] == ["linear"]


class Counting(nn.Module):
    """Computes with a number, and gives one, or nothing."""

    def forward(self, count=None):
        return None if count is None else count + 1


class Telling(nn.Module):
    """Has parts that have to do with no tensor."""

    def __init__(self):
        super().__init__()
        self.count, self.nothing, self.around = Counting(), Counting(), nn.Sequential(Counting())

    def forward(self, x):
        self.nothing()
        self.around(2)
        return x * self.count(1) * self.count(1)


@pytest.mark.parametrize("options", [{}, {"leaves": "box"}, {"level": "module"}, {"dead": "drop"}])
def test_a_module_that_has_to_do_with_no_tensor_is_drawn(options):
    nodes = drawn(tbscope.trace(Telling(), X), **options)
    paths = {name.removesuffix("/Counting") for name in nodes}
    assert {"count", "count.2nd", "nothing", "around/0"} <= paths
    assert nodes["out"] == ["mul.2nd"]


class Forking(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        handed_over = torch.jit.fork(self.one, x)
        here = self.other(x)
        return torch.jit.wait(handed_over) + here


@pytest.mark.parametrize("compiled", [torch.jit.script, lambda net: torch.jit.trace(net, X)])
def test_what_a_scripted_module_forks_stands_in_it(compiled):
    graph = tbscope.trace(compiled(Forking()), X)
    graph.verify()
    assert sorted(scope_of_ops(graph)) == [
        ("add", "Forking"),
        ("addmm", "Forking"),
        ("addmm", "Forking"),
        ("t", "Forking"),
        ("t", "Forking"),
    ]
    assert origins(graph) == {"out": {"x", "one.weight", "one.bias", "other.weight", "other.bias"}}


def test_a_model_that_forks_unscripted_is_drawn_as_it_runs():
    graph = tbscope.trace(Forking(), X)
    assert ("linear", "Forking/Linear[one]") in scope_of_ops(graph)


# -- depth ------------------------------------------------------------------------------


def nested(levels):
    model = nn.Linear(3, 3)
    for _ in range(levels):
        model = Calling(model)
    return model


def deepest():
    """Return how many levels stand unwatched from here on."""
    levels = 0
    try:
        for levels in range(10, 10_000, 10):
            with torch.no_grad():
                nested(levels)(X)
    except RecursionError:
        pass
    return levels - 10


def test_modules_nest_as_deep_as_they_do_unwatched():
    levels = deepest()
    before = sys.getrecursionlimit()
    graph = tbscope.trace(nested(levels), X)
    assert sys.getrecursionlimit() == before
    assert len(graph.calls) == levels + 1
    name = "/".join(["inner"] * levels)
    assert drawn(graph)[name][0] == "x"


def test_modules_that_nest_deeper_than_python_allows_are_told_so():
    limit = sys.getrecursionlimit()
    with pytest.raises(tbscope.TraceError) as raised:
        tbscope.trace(nested(2 * limit), X)
    lines = str(raised.value).split("\n")
    assert lines[0].startswith("the model raised while it was being traced, in Calling/Calling[")
    assert len(lines[0]) < 500
    assert lines[1].startswith("  why: RecursionError: maximum recursion depth exceeded")
    assert lines[2].startswith("  fix: see test_called_modules.py:")
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize(
    ("error", "start"),
    [("RecursionError", "the model raised"), ("ValueError", "tbscope itself failed")],
)
def test_where_pythons_limit_is_met_is_chance(error, start):
    code = compile(f"def forward(x): raise {error}('deep')", f"{OWN_FILES}x.py", "exec")
    names = {}
    exec(code, names)
    with pytest.raises(tbscope.TraceError, match=start):
        tbscope.trace(names["forward"], X)


def test_a_limit_that_somebody_sets_meanwhile_is_left_to_them():
    limit = sys.getrecursionlimit()
    try:
        with deep_enough:
            assert sys.getrecursionlimit() > limit
            sys.setrecursionlimit(limit + 7)
        assert sys.getrecursionlimit() == limit + 7
    finally:
        sys.setrecursionlimit(limit)


def test_the_limit_is_as_before_however_many_threads_are_watched():
    limit, inside, end = sys.getrecursionlimit(), threading.Event(), threading.Event()

    def watch():
        with tbscope.record():
            inside.set()
            end.wait()

    with tbscope.record():
        thread = threading.Thread(target=watch)
        other = threading.Thread(target=lambda: None)
        thread.start()
        other.start()
        inside.wait()
    end.set()
    thread.join()
    assert sys.getrecursionlimit() == limit


# -- scripted modules --------------------------------------------------------------------


class Recomputing(Calling):
    """Differentiates a part that is run again for that."""

    def forward(self, x):
        y = checkpoint(self.inner, x, use_reentrant=False).exp()
        return torch.autograd.grad(y.sum(), self.inner.weight)[0]


def test_a_module_that_an_operation_calls_is_a_part_of_it():
    graph = tbscope.trace(Recomputing(nn.Linear(3, 3)), X, grad=True)
    ops = [node.op for node in graph.nodes if node.kind == "op"]
    assert ops == ["linear", "exp", "sum", "grad"]
    assert [node for node in graph.nodes if node.kind == "constant"] == []
    assert [call.scope.path for call in graph.calls] == ["Recomputing", "Recomputing/Linear[inner]"]


class Sine(nn.Sequential):
    """Runs its parts, and a layer that it does not hold, inside of one operation."""

    def forward(self, x):
        x = x.as_subclass(called_models.Calling)
        x.module = lambda y: LOOSE(super(Sine, self).forward(y))
        return torch.sin(x)


def test_an_operation_reads_what_each_module_holds_that_it_calls_and_that_is_of_the_model():
    graph = tbscope.trace(Sine(nn.Linear(3, 3), nn.Linear(3, 3)), X)
    (node,) = [node for node in graph.nodes if node.kind == "op"]
    names = [value.producer.name for value in node.inputs]
    assert names == ["x", "0.weight", "0.bias", "1.weight", "1.bias"]


class Named(nn.Module):
    """Has a parameter with a name that functions of the watching have, too."""

    def forward(self, module, function=0, number=0):
        return module + function + number


def swapped(x):
    y, z = x + 1, x + 2
    torch.utils.swap_tensors(t1=y, t2=z)
    return y


def submitted(x):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(Named(), module=x, function=1, number=2).result()


@pytest.mark.parametrize("call", [lambda x: Named()(module=x), swapped, submitted])
def test_keywords_of_any_name_reach_the_functions_of_the_user(call):
    graph = tbscope.trace(call, X)
    assert graph.outputs[0].value.shape == tuple(X.shape)
    assert [node.op for node in graph.nodes if node.kind == "op"].count("add") >= 1


def test_a_watched_model_takes_keywords_of_any_name(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        tbscope.watch(writer, model := Named(), backward=False)
        assert torch.equal(model(module=X, number=1), X + 1)
    assert len(tbscope.load(tmp_path).nodes) > 1


def test_a_captured_model_takes_keywords_of_any_name():
    graphs = tbscope.compile_graphs(Named(), kwargs={"module": X, "number": 1})
    assert len(graphs) == 1
