"""What differs on a CUDA device: its threads, streams, generators, clocks and kernels."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import tbscope

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def ops(graph):
    return [node for node in graph.nodes if node.kind == "op"]


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(width), nn.Linear(width, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.dropout(self.fc(self.norm(x)).relu())


def test_a_trace_changes_no_number_no_generator_and_no_memory():
    model, x = nn.Sequential(Block(), Block()).cuda(), torch.randn(8, 64, device="cuda")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    # cuBLAS takes its workspace at the first product of a thread.
    model(x).sum().backward()
    model.zero_grad()
    model.load_state_dict(state)
    before = torch.cuda.get_rng_state(), torch.cuda.current_stream(), torch.cuda.memory_allocated()
    tbscope.trace(model, x, training=True, loss=torch.sum, backward=True)
    after = torch.cuda.get_rng_state(), torch.cuda.current_stream(), torch.cuda.memory_allocated()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert all(torch.equal(state[name], each) for name, each in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_stream_that_forward_sets_is_set_back():
    class Leaky(nn.Module):
        def forward(self, x):
            torch.cuda.set_stream(torch.cuda.Stream())
            return x + 1

    before = torch.cuda.current_stream()
    tbscope.trace(Leaky(), torch.ones(1, device="cuda"))
    assert torch.cuda.current_stream() == before


def test_a_copy_to_the_cpu_that_is_under_way_is_undone():
    class Copying(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("host", torch.zeros(1 << 22).pin_memory())

        def forward(self, x):
            torch.cuda._sleep(200_000_000)
            self.host.copy_(x, non_blocking=True)
            return x + 1

    model = Copying()
    tbscope.trace(model, torch.ones(1 << 22, device="cuda"))
    torch.cuda.synchronize()
    assert not model.host.any()


def test_a_replayed_cuda_graph_is_a_note_and_its_writes_are_undone():
    class Replaying(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1, device="cuda"))
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.count += 1
            torch.cuda.synchronize()
            self.count.zero_()

        def forward(self, x):
            self.graph.replay()
            return x + self.count

    model = Replaying()
    graph = tbscope.trace(model, torch.ones(1, device="cuda"), profile=2)
    assert not model.count
    assert [note.text for note in graph.notes if "a CUDA graph was replayed" in note.text]


def test_a_step_is_recorded_while_it_is_captured():
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    x = torch.randn(4, 8, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    optimizer.zero_grad(set_to_none=True)
    with tbscope.record(model) as recording, torch.cuda.graph(torch.cuda.CUDAGraph()):
        step()
    assert "optimizer/AdamW" in {str(node.scope) for node in ops(recording.graph)}
    assert not any("gradient_norm" in node.attributes for node in recording.graph.nodes)


@pytest.mark.parametrize(
    "backend",
    [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION],
)
def test_attention_has_the_same_flops_in_every_backend(backend):
    query, key = torch.randn(2, 8, 32, 64).cuda().half(), torch.randn(2, 2, 32, 64).cuda().half()
    grouped = backend is not SDPBackend.EFFICIENT_ATTENTION
    if not grouped:
        key = key.repeat_interleave(4, 1)
    model = nn.functional.scaled_dot_product_attention
    query.requires_grad_()
    with sdpa_kernel(backend):
        graph = tbscope.trace(
            lambda q, k, v: model(q, k, v, enable_gqa=grouped),
            (query, key, key),
            loss=torch.sum,
            backward=True,
        )
    forward = 2 * 2 * 8 * 32 * 32 * (64 + 64)
    flops = [node.flops for node in ops(graph) if "attention" in node.op]
    assert flops == [forward, forward * 5 // 2]


def test_times_are_those_of_the_device_for_a_small_model_too():
    """The processor takes longer to start these kernels than the device to run them."""
    model = nn.Sequential(*(Block(256) for _ in range(20))).cuda()
    x = torch.randn(64, 256, device="cuda")
    profile = tbscope.trace(model, x, loss=torch.sum, backward=True, profile=True).profile
    assert profile.clock == "events"
    assert profile.operations_us < profile.forward_us


def test_times_add_up_to_those_of_a_large_model():
    model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(4))).cuda()
    profile = tbscope.trace(model, torch.randn(4096, 4096, device="cuda"), profile=True).profile
    assert abs(profile.operations_us / profile.forward_us - 1) < 0.1


def test_random_numbers_of_a_device_that_only_the_run_uses_are_drawn_again():

    script = """
import torch, tbscope
torch.manual_seed(3)
tbscope.trace(lambda x: torch.nn.functional.dropout(x.cuda()), torch.ones(9), training=True)
first = torch.rand(4, device="cuda")
torch.manual_seed(3)
assert torch.equal(first, torch.rand(4, device="cuda"))
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_hooks_of_a_backward_pass_are_recorded_and_undone():
    model = nn.Sequential(Block(), Block()).cuda()
    optimizers = {each: torch.optim.AdamW([each], fused=True) for each in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    x = torch.randn(8, 64, device="cuda")
    model(x).sum().backward()
    state = {
        (number, key): value.clone()
        for number, optimizer in enumerate(optimizers.values())
        for table in optimizer.state.values()
        for key, value in table.items()
    }
    graph = tbscope.trace(model, x, loss=torch.sum, backward=True)
    assert len([node for node in graph.nodes if "updates" in node.attributes]) == len(optimizers)
    for number, optimizer in enumerate(optimizers.values()):
        for table in optimizer.state.values():
            assert all(torch.equal(value, state[number, key]) for key, value in table.items())


def test_triton_kernels_are_operations():
    triton = pytest.importorskip("triton")
    tl = triton.language

    @triton.jit
    def double(x, out, size, block: tl.constexpr):
        at = tl.arange(0, block)
        tl.store(out + at, tl.load(x + at, at < size) * 2, at < size)

    class Doubling(nn.Module):
        def forward(self, x):
            out = torch.empty_like(x)
            double[(1,)](x, out, x.numel(), block=64)
            return out + 1

    x = torch.randn(64, device="cuda")
    # `tl` is a variable of this function; a kernel reads globals.
    globals()["tl"] = tl
    for options in ({}, {"fake": True}, {"profile": 2}):
        graph = tbscope.trace(Doubling(), x, **options)
        (node,) = [each for each in ops(graph) if each.op == "double"]
        assert [argument.name for argument in node.arguments] == ["x", "out", "size", "block"]
        assert graph.nodes[-2 if graph.nodes[-1].kind != "op" else -1].inputs[0] is node.outputs[0]
        torch.cuda.synchronize()
    assert node.duration_us > 0
