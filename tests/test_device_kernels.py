"""Kernels of CUDA devices: which operation launched each, by the profiler's events."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from training_steps import POINTS, Net

import tbscope
from tbscope.ir.graph import Node
from tbscope.sources.eager.measure.device_kernels import (
    DeviceKernel,
    Launches,
    Marks,
    profiled,
    tell_kernels,
)
from tbscope.sources.torch.internals import is_profiling


def event(name, start, end, *kernels, thread=1):
    return SimpleNamespace(
        name=name,
        thread=thread,
        time_range=SimpleNamespace(start=start, end=end),
        kernels=[SimpleNamespace(name=each, duration=time) for each, time in kernels],
    )


def mark(number, at, thread=1):
    return event(f"tbscope mark {number}", at, at + 1, thread=thread)


GEMM, ADD = ("gemm", 7.5), ("add", 2.0)


def names(kernels):
    return [kernel.name for kernel in kernels]


def test_a_kernel_belongs_to_the_call_between_whose_marks_it_was_launched():
    events = [mark(0, 0), event("aten::mm", 2, 8, GEMM), mark(1, 9), mark(2, 11)]
    events += [event("aten::add", 13, 15, ADD), mark(3, 16)]
    launches = Launches(events)
    assert launches.between(0, 1) == [DeviceKernel("gemm", 7.5)]
    assert launches.between(2, 3) == [DeviceKernel("add", 2.0)]
    assert launches.between(1, 2) == []


def test_a_call_has_the_kernels_of_all_operations_inside_of_it():
    events = [mark(0, 0), mark(1, 2), event("aten::mm", 4, 5, GEMM), mark(2, 6)]
    events += [event("aten::add_", 8, 9, ADD), mark(3, 10)]
    launches = Launches(events)
    assert names(launches.between(0, 3)) == ["gemm", "add"]
    assert names(launches.between(1, 2)) == ["gemm"]


def test_kernels_are_told_in_the_order_of_their_operations_though_events_are_not():
    events = [event("aten::add", 5, 6, ADD), mark(1, 8), event("aten::mm", 2, 3, GEMM), mark(0, 0)]
    assert names(Launches(events).between(0, 1)) == ["gemm", "add"]


def test_what_another_thread_launches_meanwhile_is_no_kernel_of_the_call():
    elsewhere = event("aten::mm", 3, 4, GEMM, thread=2)
    events = [mark(0, 0), elsewhere, event("aten::add", 5, 6, ADD), mark(1, 8)]
    launches = Launches(events)
    assert names(launches.between(0, 1)) == ["add"]
    assert launches.between(0, 2) == []
    assert Launches([mark(0, 0), elsewhere, mark(1, 8, thread=2)]).between(0, 1) == []


def test_marks_that_two_threads_have_set_stand_around_nothing():
    events = [mark(0, 0), event("aten::mm", 3, 4, GEMM)]
    assert Launches([*events, mark(1, 8, thread=2)]).between(0, 1) == []
    assert names(Launches([*events, mark(1, 8)]).between(0, 1)) == ["gemm"]


def test_an_operation_may_begin_in_the_very_moment_in_which_a_mark_ends():
    # The mark takes until 1.
    events = [mark(0, 0), event("aten::mm", 1, 4, GEMM), mark(1, 5)]
    assert names(Launches(events).between(0, 1)) == ["gemm"]


def test_kernels_of_one_name_are_told_together():
    node = Node("1", "conv2d", "op", None)
    tell_kernels(node, [DeviceKernel(*GEMM), DeviceKernel(*ADD), DeviceKernel("gemm", 2.5)])
    assert node.attributes["device_kernels"] == "gemm x2: 10 us; add: 2 us"


def test_of_no_kernels_nothing_is_told():
    node = Node("1", "conv2d", "op", None)
    tell_kernels(node, [])
    assert node.attributes == {}


def test_the_marks_of_a_real_profile_stand_around_the_operations_that_ran_between_them():
    marks, read = Marks(), []
    x = torch.ones(3, 3)
    with profiled() as events:
        for function in (torch.mm, torch.add):
            before = marks.read()
            function(x, x)
            read.append((before, marks.read()))
    found = list(events())
    for each in found:
        if each.name in ("aten::mm", "aten::add"):
            each.append_kernel(f"{each.name} on a device", 0, 5)
    launches = Launches(found)
    told = [names(launches.between(*pair)) for pair in read]
    assert told == [["aten::mm on a device"], ["aten::add on a device"]]


def test_whether_somebody_profiles_is_known():
    assert not is_profiling()
    with profiled():
        assert is_profiling()
    assert not is_profiling()


def test_on_the_processor_no_profile_is_made_and_no_kernel_told():
    with torch.profiler.profile() as profile:
        graph = tbscope.trace(nn.Linear(3, 2), POINTS, profile=1)
    assert "aten::linear" in {event.name for event in profile.events()}
    assert not any("tbscope mark" in event.name for event in profile.events())
    assert not any("device_kernels" in node.attributes for node in graph.nodes)
    assert not any("a profiler runs" in note.text for note in graph.notes)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kernels", [False, True])
def test_on_a_gpu_each_product_tells_its_kernels(kernels):
    model, points = Net().cuda(), POINTS.cuda()
    given = {"loss": torch.sum, "backward": True, "profile": 1, "kernels": kernels}
    graph = tbscope.trace(model, points, training=True, **given)
    products = [node for node in graph.nodes if node.op in ("linear", "mm")]
    assert {node.phase for node in products} == {"forward", "backward"}
    assert all(" us" in node.attributes["device_kernels"] for node in products)
    inner = [one for node in products if node.body for one in node.body.nodes]
    assert any("device_kernels" in one.attributes for one in inner) == kernels
