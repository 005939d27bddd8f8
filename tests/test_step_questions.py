"""What a recorded step does for each question, and for each kernel of a backward pass."""

import sys

import torch
from torch import nn

import tbscope
from tbscope.sources.torch.operations import METADATA_QUERIES

OWN = tbscope.__file__.removesuffix("__init__.py")


def calls_of_ours(code):
    """Count the functions of tbscope that run while a code does."""
    count = 0

    def look(frame, event, arg):
        nonlocal count
        if event == "call" and frame.f_code.co_filename.startswith(OWN):
            count += 1

    sys.setprofile(look)
    try:
        code()
    finally:
        sys.setprofile(None)
    return count


def test_a_question_of_a_tensor_costs_one_call():
    weight = nn.Parameter(torch.ones(2))
    weight.sum().backward()
    with tbscope.record():
        weight.add(1)
        for ask in ("device", "dtype", "shape", "is_sparse", "requires_grad", "is_leaf", "ndim"):
            assert calls_of_ours(lambda ask=ask: getattr(weight, ask)) == 1, ask
        assert calls_of_ours(lambda: torch.is_complex(weight)) == 1
        # Who may put it back is told that a gradient was taken.
        assert calls_of_ours(lambda: weight.grad) <= 5
        assert calls_of_ours(lambda: weight.add(1)) > 10


def test_each_question_runs_no_kernel_and_gives_what_it_gives_outside():
    for tensor in (torch.ones(2, 3), torch.ones(2).to_sparse(), nn.Parameter(torch.ones(()))):
        for ask in METADATA_QUERIES:
            with tbscope.record() as recording:
                given = ask(tensor)
            assert given == ask(tensor)
            assert recording.graph.nodes == []


def test_the_kernels_of_a_backward_pass_come_by_no_mode_of_functions():
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.BatchNorm1d(2))
    seen = []

    def look(frame, event, arg):
        if event == "call" and frame.f_code.co_name == "__torch_function__":
            seen.append(frame.f_locals["func"])

    with tbscope.record(model) as recording:
        loss = model(torch.rand(2, 1, 5)).sum()
        sys.setprofile(look)
        try:
            loss.backward()
        finally:
            sys.setprofile(None)
    kernels = [node.kernels for node in recording.graph.nodes if node.phase == "backward"]
    assert ["aten::convolution_backward"] in kernels
    assert [func for func in seen if isinstance(func, torch._ops.OpOverload)] == []
    # Nor is anybody asked for shapes, to count the FLOPs.
    assert torch.Tensor.shape.__get__ not in seen


def adam():
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(20)])
    return model, torch.optim.AdamW(model.parameters(), foreach=False)


def test_a_region_ends_with_few_calls_for_each_operation():
    model, optimizer = adam()
    recording = tbscope.record(model)
    recording.__enter__()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    calls = calls_of_ours(lambda: recording.__exit__(None, None, None))
    assert calls < 5 * len(recording.graph.nodes)
