"""Kernels that are launched past torch's dispatcher: Triton's, and those of CUDA graphs.

No GPU is needed: a stand-in for Triton launches kernels whose work is done out of torch's sight.
"""

import sys
import types

import pytest
import torch
from torch import nn

import tbscope
from tbscope.sources.torch.compat.tensors import outside_modes
from tbscope.sources.torch.triton_kernels import stored_parameters

# In the sources of kernels, which are only read.
tl = helper = None


class Kernels:
    """The base of kernels, as in `triton.runtime.jit`."""

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)


class Kernel(Kernels):
    def __init__(self, fn, work):
        self.fn, self.work, self.launched = fn, work, 0

    def run(self, *args, grid, **kwargs):
        self.launched += 1
        with outside_modes(), torch.no_grad():
            self.work(*args)
        return "compiled"


class Autotuned(Kernels):
    """A kernel that is launched many times, but once for the user."""

    def __init__(self, fn):
        self.fn = fn

    def run(self, *args, grid, **kwargs):
        for _ in range(2):
            self.fn.run(*args, grid=grid, **kwargs)


def _add_rows(x_ptr, w_ptr, out_ptr, size, block):
    at = tl.arange(0, block)
    total = tl.load(x_ptr + at, at < size) + tl.load(w_ptr + at, at < size)
    tl.store(out_ptr + at, total, at < size)


def count_up(count_ptr):
    tl.atomic_add(count_ptr, 1)


@pytest.fixture(autouse=True)
def triton(monkeypatch):
    module = types.ModuleType("triton.runtime.jit")
    module.KernelInterface = Kernels
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", module)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("count", torch.zeros(1))
        self.linear = nn.Linear(4, 2)
        self.add = Kernel(_add_rows, lambda x, w, out, size: out.copy_(x + w))
        self.count_up = Autotuned(Kernel(count_up, lambda count: count.add_(1)))

    def forward(self, x):
        out = torch.empty_like(x)
        compiled = self.add[(1,)](x, self.weight, out, 4, block=4)
        assert compiled in ("compiled", None)
        self.count_up[(1,)](self.count)
        return self.linear(out) * self.count


def node(graph, op):
    (found,) = [each for each in graph.nodes if each.op == op]
    return found


def test_a_kernel_is_an_operation_that_writes_into_its_outputs():
    net, x = Net(), torch.rand(4)
    expected = net(x)
    net.count.zero_()
    graph = tbscope.trace(net, x)
    add, count = (node(graph, name) for name in ("add_rows", "count_up"))
    assert [value.name for value in add.inputs] == ["x", "weight", "1"]
    assert [argument.name for argument in add.arguments] == [
        *("x_ptr", "w_ptr", "out_ptr", "size", "block")
    ]
    assert add.kernels == ["triton::_add_rows"]
    assert add.flops is None
    assert add.source.function == "forward"
    assert node(graph, "linear").inputs[0] is add.outputs[0]
    assert node(graph, "mul").inputs[1] is count.outputs[0]
    assert not net.count
    assert torch.equal(net(x), expected)


def test_fake_tensors_reach_no_kernel():
    net = Net()
    graph = tbscope.trace(net, torch.rand(4), fake=True)
    assert net.add.launched == net.count_up.fn.launched == 0
    assert node(graph, "linear").inputs[0].producer.op == "add_rows"


def test_a_kernel_has_a_time_and_its_writes_are_undone_after_each_run():
    net = Net()
    graph = tbscope.trace(net, torch.rand(4), profile=2)
    assert node(graph, "add_rows").duration_us > 0
    assert node(graph, "count_up").duration_us > 0
    assert not net.count


def test_without_a_recording_a_kernel_returns_what_it_returned():
    net = Net()
    with tbscope.record(net):
        assert net.add[(1,)](torch.ones(4), net.weight, torch.ones(4), 4) == "compiled"
    assert vars(Kernels)["__getitem__"].__qualname__ == "Kernels.__getitem__"


def in_loop(a_ptr, b_ptr, n):
    at = b_ptr
    for _ in range(n):
        tl.store(at, 1)
        at = a_ptr + 1


def by_index(index_ptr, out_ptr):
    tl.store(out_ptr + tl.load(index_ptr), 1.0)


def by_helper(x_ptr, y_ptr, n):
    helper(x_ptr + 1, n=n)
    tl.load(y_ptr)


def by_descriptor(x_ptr, out_ptr, n):
    out: object = tl.make_tensor_descriptor(base=out_ptr)
    value = tl.make_block_ptr(x_ptr).load([0])
    out.store([0], value)


def moved(x_ptr, out_ptr, n):
    x_ptr += n
    tl.store(pointer=out_ptr, value=tl.load(x_ptr))


@pytest.mark.parametrize(
    ("kernel", "stored"),
    [
        (_add_rows, {"out_ptr"}),
        (count_up, {"count_ptr"}),
        (in_loop, {"a_ptr", "b_ptr"}),
        (by_index, {"out_ptr"}),
        (by_helper, {"x_ptr"}),
        (by_descriptor, {"out_ptr"}),
        (moved, {"out_ptr"}),
        (eval("lambda x_ptr, y_ptr: 0"), {"x_ptr", "y_ptr"}),
    ],
)
def test_a_kernel_writes_where_its_source_stores(kernel, stored):
    found = stored_parameters(kernel)
    assert {name for name in found if name.endswith("_ptr")} == stored


def test_a_replayed_graph_is_a_note(monkeypatch):
    replayed = []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", replayed.append)

    class Replaying(nn.Module):
        def forward(self, x):
            for number in range(2):
                torch.cuda.CUDAGraph.replay(number)
            return x + 1

    graph = tbscope.trace(Replaying(), torch.ones(1))
    assert replayed == [0, 1]
    (note,) = [note for note in graph.notes if "CUDA graph" in note.text]
    assert note.source.function == "forward"
