"""Where things stand that a run meets late: recursion, children made in forward, hidden modules."""

import pytest
import torch
from torch import nn
from torch.utils import checkpoint

import tbscope


class Wrap(nn.Module):
    """A module whose forward is given, with modules as attributes."""

    def __init__(self, run, **modules):
        super().__init__()
        self.run = run
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x, *given):
        return self.run(self, x, *given)


def paths(graph, *kinds):
    return [str(node.scope or "") for node in graph.nodes if node.kind in (kinds or ("op",))]


def test_a_child_of_a_module_that_calls_itself_stands_in_the_innermost_call():
    def run(self, x, times=2):
        y = self.inner["a"](self.lin(x))
        return self(y, times - 1) + 1 if times else y

    net = Wrap(run, lin=nn.Linear(2, 2), inner=nn.ModuleDict({"a": nn.ReLU()}))
    graph = tbscope.trace(net, torch.ones(1, 2))
    calls = ["Wrap", "Wrap.1", "Wrap.2"]
    both = [[f"{call}/Linear[lin]", f"{call}/ModuleDict[inner]/ReLU[a]"] for call in calls]
    assert paths(graph) == [*both[0], *both[1], *both[2], "Wrap.1", "Wrap"]
    assert set(paths(graph, "parameter")) == {"Wrap/Linear[lin]"}


def test_a_block_by_hand_in_a_call_holds_the_call_that_it_makes_of_itself_again():
    def run(self, x, times=1):
        with tbscope.scope("step"):
            return self(self.lin(x), times - 1) if times else self.lin(x)

    graph = tbscope.trace(Wrap(run, lin=nn.Linear(2, 2)), torch.ones(1, 2))
    assert paths(graph) == ["Wrap/step/Linear[lin]", "Wrap.1/step/Linear[lin]"]


def test_what_a_module_calls_after_a_call_of_itself_stands_in_its_own_call():
    def run(self, x, times=1):
        return self.lin(self(x, times - 1) if times else x)

    graph = tbscope.trace(Wrap(run, lin=nn.Linear(2, 2)), torch.ones(1, 2))
    assert paths(graph) == ["Wrap.1/Linear[lin]", "Wrap/Linear[lin]"]


def test_a_module_whose_child_ran_before_it_is_one_box():
    block = nn.Sequential(nn.Tanh())
    net = Wrap(lambda self, x: self.block(self.block(self.block[0](x))), block=block)
    graph = tbscope.trace(net, torch.ones(1, 2))
    first, *calls = (f"Wrap/Sequential[block]{text}/Tanh[0]" for text in ("", ".1"))
    assert paths(graph) == [first, f"{first}.1", *calls]


def grown(self, x):
    if not hasattr(self, "head"):
        self.head = nn.Sequential(nn.Linear(2, 2, bias=False))
        self.register_buffer("scale", torch.ones(2))
    return self.head(x) * self.scale


def test_children_of_a_child_that_the_run_makes_have_their_true_names():
    graph = tbscope.trace(nn.Sequential(Wrap(grown)), torch.ones(1, 2))
    called = [call.qualified_name for call in graph.calls]
    assert called == ["", "0", "0.head", "0.head.0"]
    assert [call.scope.path for call in graph.calls][
        3
    ] == "Sequential/Wrap[0]/Sequential[head]/Linear[0]"


def test_children_of_a_hidden_module_that_the_run_makes_have_no_name_of_the_model():
    net = Wrap(lambda self, x: self.hidden[0](x))
    net.hidden = [Wrap(grown)]
    graph = tbscope.trace(net, torch.ones(1, 2))
    assert [call.qualified_name for call in graph.calls] == ["", None, None, None]
    assert [call.scope.path for call in graph.calls][
        3
    ] == "Wrap/Wrap[?0]/Sequential[head]/Linear[0]"


class Hidden(nn.Module):
    """Holds a module in a list, so that it is not registered, below one that is."""

    def __init__(self, inner):
        super().__init__()
        self.own = nn.Linear(3, 3)
        self.hidden = [inner]

    def forward(self, x):
        return self.own(self.hidden[0](x))


@pytest.mark.parametrize("options", [{}, {"fake": True}], ids=["run", "fake"])
def test_hidden_modules_inside_of_hidden_ones_count_in_those_and_not_in_the_model(options):
    net = Hidden(Hidden(Hidden(nn.Linear(3, 3, bias=False))))
    summary = tbscope.trace(net, torch.ones(1, 3), **options).summary()
    told = [(row["module"], row["name"], row["parameters"]) for row in summary.rows]
    assert sorted(told, key=str) == [
        ("?0", None, 12 + 12 + 9),
        ("?1", None, 12 + 9),
        ("?2", None, 9),
        ("Hidden", "", 12),
        ("own", "own", 12),
        ("own", None, 12),
        ("own", None, 12),
    ]
    assert summary.totals["parameters"] == sum(p.numel() for p in net.parameters()) == 12
    assert summary.totals["unregistered_parameters"] == 12 + 12 + 9


@pytest.mark.parametrize("style", ["tf", "torch"])
@pytest.mark.parametrize("child", ["add", "added"])
def test_an_operation_that_is_called_as_a_box_is_has_a_name_of_its_own(style, child):
    inner = nn.ModuleDict({"b": nn.ModuleDict({"c": nn.Sequential(nn.Linear(2, 2), nn.ReLU())})})
    net = Wrap(lambda self, x: getattr(self, child)["b"]["c"](x) + x, **{child: inner})
    drawn = tbscope.to_graph_def(tbscope.trace(net, torch.ones(1, 2)), style=style)
    names = [node.name for node in drawn.node]
    boxes = {name[:at] for name in names for at, sign in enumerate(name) if sign == "/"}
    assert len(set(names)) == len(names)
    [name] = [node.name for node in drawn.node if node.op == "add"]
    assert name not in boxes
    assert (name in ("add", "Wrap/add")) == (style == "torch" or child == "added")


# -- operations ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 7], ids=["works", "fails"])
@pytest.mark.parametrize("watch", ["function", "kernel"])
def test_a_write_that_failed_and_was_caught_is_no_write_of_the_next_operation(size, watch):
    def run(x):
        y = x * 2
        given = torch.ones(size)
        try:
            if watch == "function":
                y.add_(given)
            else:
                with torch._C.DisableTorchFunction():
                    y.add_(given)
        except RuntimeError:
            pass
        return x.relu(), y * 3

    graph = tbscope.trace(run, torch.ones(3), kernels=True)
    written = "add_" if size == 3 else "mul"
    nodes = {node.op: node for node in graph.nodes[:-1]}
    assert len(nodes["relu"].outputs) == 1
    assert graph.nodes[-1].inputs[0].producer.op == written
    assert ("add_" in nodes) == (size == 3)


def test_what_gives_nothing_is_drawn_where_a_kernel_ran():
    def run(x):
        torch._assert_async(x.sum() > 0)
        return x.contiguous()

    graph = tbscope.trace(run, torch.ones(3))
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["sum", "gt", "assert_async"]


def test_a_module_that_gives_one_tensor_twice_has_one_output():
    net = Wrap(lambda self, x: self.twice(x), twice=Wrap(lambda self, x: (x, x)))
    graph = tbscope.trace(net, torch.ones(2))
    assert [len(node.outputs) for node in graph.nodes if node.kind == "op"] == [1]


class Helping(nn.Module):
    """Has a method that its part calls while both run."""

    def __init__(self):
        super().__init__()
        self.part = Wrap(lambda part, x: self.help(x) + 1)

    def help(self, x):
        return x * 2

    def forward(self, x):
        return self.part(x) - 1


def test_a_method_of_a_running_module_runs_in_the_innermost_call():
    graph = tbscope.trace(Helping(), torch.ones(2))
    assert paths(graph) == ["Helping/Wrap[part]", "Helping/Wrap[part]", "Helping"]


def test_a_buffer_that_a_run_replaces_by_a_tensor_from_before_is_another_buffer():
    fresh = torch.ones(2)

    def run(self, x):
        y = x * self.mask
        self.mask = fresh
        return y * self.mask

    net = Wrap(run)
    net.register_buffer("mask", torch.zeros(2))
    graph = tbscope.trace(net, torch.ones(2))
    assert [node.name for node in graph.nodes if node.kind == "buffer"] == ["mask", "mask~2"]


def test_an_operation_of_torchs_own_that_fails_and_is_caught_hides_none_after_it():
    own = {}
    exec(compile("def call(x): return x @ x.new_ones(7)", checkpoint.__file__, "exec"), own)

    def run(x):
        try:
            own["call"](x)
        except RuntimeError:
            return x * 2

    # Recent versions of torch have no such operations, and `new_ones` is recorded.
    graph = tbscope.trace(run, torch.ones(2))
    assert [node.op for node in graph.nodes][-1] == "mul"
