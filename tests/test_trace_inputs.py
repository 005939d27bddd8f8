"""Generators, wrappers of models, and other arguments that need care."""

import os
import threading

import pytest
import torch
from torch import nn
from versions import needs_torch

import tbscope


def test_a_generator_given_back_is_run_to_its_end():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, x):
            for _ in range(2):
                x = self.lin(x)
                yield x

    graph = tbscope.trace(Steps(), torch.randn(1, 2))
    graph.verify()
    assert [output.name for output in graph.outputs] == ["out.0", "out.1"]
    assert [call.scope.path for call in graph.find_calls("lin")] == [
        "Steps/Linear[lin]",
        "Steps/Linear[lin].1",
    ]


def test_data_parallel_models_are_drawn_as_what_they_spread():
    net = nn.Sequential(nn.Linear(2, 2))
    x = torch.randn(1, 2)
    assert str(tbscope.trace(nn.DataParallel(net), x)) == str(tbscope.trace(net, x))


def test_distributed_models_are_drawn_without_waiting_for_other_ranks():
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        x = torch.randn(2, 2)
        spread = nn.parallel.DistributedDataParallel(net)
        assert str(tbscope.trace(spread, x)) == str(tbscope.trace(net, x))
    finally:
        dist.destroy_process_group()


@needs_torch(2, 7, reason="fully_shard runs on the CPU")
def test_fully_sharded_modules_are_drawn_under_their_names():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
        graph = tbscope.trace(net, torch.randn(1, 2))
    finally:
        dist.destroy_process_group()
    graph.verify()
    assert "0.weight" in [node.name for node in graph.nodes]
    assert {call.qualified_name for call in graph.calls} == {"", "0", "1"}


def test_other_threads_run_the_same_model_undisturbed():
    net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)])
    x = torch.randn(1, 8)
    want, stop, wrong = net(x), threading.Event(), []

    def train():
        while not stop.is_set():
            if not torch.equal(net(x), want):
                wrong.append(1)

    thread = threading.Thread(target=train)
    thread.start()
    texts = {str(tbscope.trace(net, x, training=None)) for _ in range(10)}
    stop.set()
    thread.join()
    assert len(texts) == 1
    assert not wrong


def test_threads_trace_side_by_side():
    found = []

    def trace(width):
        net = nn.Sequential(*[nn.Linear(width, width) for _ in range(10)])
        for _ in range(5):
            graph = tbscope.trace(net, torch.randn(1, width))
            found.append({value.shape for node in graph.nodes for value in node.outputs})

    before = nn.Module._call_impl
    threads = [threading.Thread(target=trace, args=(width,)) for width in (3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    assert all(len({size for shape in shapes for size in shape} - {1}) == 1 for shapes in found)
    assert nn.Module._call_impl is before


def test_modes_of_the_user_stay_in_force():
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = {"functions": 0, "kernels": 0}

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen["functions"] += 1
            return func(*args, **(kwargs or {}))

    class Kernels(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen["kernels"] += 1
            return func(*args, **(kwargs or {}))

    net, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.randn(1, 2)
    plain = str(tbscope.trace(net, x))
    with Functions(), Kernels():
        assert str(tbscope.trace(net, x)) == plain
    assert min(seen.values()) > 0
    with torch.device("meta"), torch.no_grad(), torch.autocast("cpu", enabled=False):
        assert str(tbscope.trace(net, x)) == plain


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_trace_in_a_data_loader_worker_is_a_trace():
    class Graphs(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return str(tbscope.trace(nn.Linear(2, 2), torch.zeros(1, 2)))

    how = {"num_workers": 1, "batch_size": None, "multiprocessing_context": "fork"}
    loader = torch.utils.data.DataLoader(Graphs(), **how)
    assert list(loader) == [str(tbscope.trace(nn.Linear(2, 2), torch.zeros(1, 2)))]
