"""The peak: who holds the memory at the moment when most is in use."""

import pytest
import torch
from real_graphs import real_graph
from torch import nn

import tbscope
from tbscope.analysis.peak_memory import bytes_at_peak
from tbscope.overlays.overlay import make_overlay

KB = 1024


def at_peak(model, *inputs, **how):
    """Give what each operation holds at the peak, in order."""
    graph = tbscope.trace(model, inputs, **how)
    return [(node.op, size) for node, size in bytes_at_peak(graph).items()]


@pytest.mark.parametrize("how", [{}, {"profile": 1}])
def test_what_nobody_reads_any_more_is_gone(how):
    def model(x):
        return x.exp().sin().repeat(2).cos().sum()

    # Twice 2 KB are more than what came before.
    assert at_peak(model, torch.rand(256), **how) == [
        ("exp", 0),
        ("sin", 0),
        ("repeat", 2 * KB),
        ("cos", 2 * KB),
        ("sum", 0),
    ]


@pytest.mark.parametrize("how", [{}, {"profile": 1}])
def test_what_a_view_is_taken_of_stays_alive_and_so_does_what_is_written_into(how):
    def model(x):
        return x.exp()[:1] + torch.zeros(256).add_(1).sin().sum()

    assert at_peak(model, torch.rand(256), **how) == [
        ("exp", KB),
        ("getitem", 0),
        ("zeros", KB),
        ("add_", 0),
        ("sin", KB),
        ("sum", 0),
        ("add", 0),
    ]


@pytest.mark.parametrize("how", [{}, {"profile": 1}])
def test_outputs_stay_alive_to_the_end(how):
    def model(x):
        early = x.exp()
        return early, x.sin().cos()

    assert at_peak(model, torch.rand(256), **how) == [("exp", KB), ("sin", KB), ("cos", KB)]


def test_a_variable_that_python_holds_is_measured_and_not_foreseen():
    def model(x):
        y = x.exp()
        z = y.sin()
        return z.cos()

    x = torch.rand(256)
    assert [size for _, size in at_peak(model, x)] == [KB, KB, 0]
    assert [size for _, size in at_peak(model, x, profile=1)] == [KB, KB, KB]


@pytest.mark.parametrize("grad", [False, True])
def test_what_is_held_adds_up_to_the_peak_that_was_measured(grad):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    graph = tbscope.trace(model, torch.rand(2, 4, 8), training=True, grad=grad, profile=1)
    held = bytes_at_peak(graph)
    assert sum(held.values()) == graph.profile.peak_bytes > 0
    assert all(0 <= size <= graph.profile.peak_bytes for size in held.values())


@pytest.mark.parametrize("name", ["BertModel", "ResNetForImageClassification", "MambaModel"])
def test_no_operation_of_a_real_model_needs_more_than_the_peak(name):
    held = bytes_at_peak(real_graph(name))
    peak = sum(held.values())
    for node in held:
        read = {value.producer for value in node.inputs}.intersection(held)
        assert node.allocated_bytes + sum(one.allocated_bytes for one in read) <= peak
    assert all(size in (0, node.allocated_bytes) for node, size in held.items())


def test_the_overlay_adds_up_to_the_peak_in_the_page_s_figures():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    graph = tbscope.trace(model, torch.rand(16, 8), profile=1)
    (figure,) = make_overlay(graph, "peak")
    assert figure.name == "at_peak_bytes"
    assert figure.as_bytes == 1
    assert sum(figure.numbers.values()) == graph.profile.peak_bytes == 2 * 16 * 32 * 4


def test_what_an_operation_writes_into_beside_its_result_stays_alive():
    def model(x):
        mean, variance = torch.zeros(256), torch.ones(256)
        y = nn.functional.batch_norm(x, mean, variance, training=True)
        return mean + y.repeat(4, 1).sum()

    held = at_peak(model, torch.rand(2, 256))
    assert held[0] == ("zeros", KB)
    assert held[3] == ("repeat", 8 * KB)
