"""Models that raise while they are traced: what is said, and what is left behind."""

import pytest
import torch
from torch import nn

import tbscope


class Encoder(nn.Module):
    """A model in which a wrong input meets a layer two levels down."""

    def __init__(self):
        super().__init__()
        self.enc = nn.ModuleList([nn.Sequential(nn.Linear(3, 5))])
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x):
        return self.norm(self.enc[0](x))


def test_the_error_says_where_why_and_what_to_check():
    with pytest.raises(tbscope.TraceError) as error:
        tbscope.trace(Encoder(), torch.randn(2, 9))
    assert str(error.value) == (
        "the model raised while it was being traced, in "
        "Encoder/ModuleList[enc]/Sequential[0]/Linear[0]\n"
        f"  why: RuntimeError: {error.value.__cause__}\n"
        "  fix: check input_to_model: Linear[enc.0.0] got input=Float(2, 9)"
    )
    assert isinstance(error.value.__cause__, RuntimeError)


def test_a_model_that_needs_gradients_says_so():
    def forces(x):
        x.requires_grad_()
        return torch.autograd.grad((x * 2).sum(), x)[0]

    with pytest.raises(tbscope.TraceError, match="pass grad=True"):
        tbscope.trace(forces, torch.randn(2))
    tbscope.trace(forces, torch.randn(2), grad=True)


def test_with_gradients_no_error_asks_for_them():
    with pytest.raises(tbscope.TraceError, match="does not require grad") as error:
        tbscope.trace(lambda x: torch.autograd.grad(x.sum(), x)[0], torch.randn(2), grad=True)
    assert "grad=True" not in error.value.fix


def test_a_model_that_raises_is_as_before():
    net = Encoder().train()
    net.norm.eval()
    state = torch.get_rng_state()
    with pytest.raises(tbscope.TraceError):
        tbscope.trace(net, torch.randn(2, 9, generator=torch.Generator().manual_seed(0)))
    assert (net.training, net.enc[0].training, net.norm.training) == (True, True, False)
    assert torch.equal(torch.get_rng_state(), state)
    assert net(torch.randn(2, 3)).shape == (2, 5)


def test_an_interrupt_is_not_held_up():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tbscope.trace(interrupted, torch.randn(2))
    assert tbscope.trace(torch.relu, torch.randn(2)).outputs


def test_an_error_that_the_model_catches_is_no_error():
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x):
            try:
                return self.lin(x[:, :2])
            except RuntimeError:
                return self.lin(x)

    graph = tbscope.trace(Careful(), torch.randn(1, 3))
    graph.verify()
    assert len(graph.find_calls("lin")) == 2


def test_an_error_of_the_graph_is_told_where_no_module_ran():
    def fail(x):
        raise ValueError("no such thing")

    with pytest.raises(tbscope.TraceError) as error:
        tbscope.trace(fail, torch.randn(2))
    assert str(error.value) == (
        "the model raised while it was being traced, in fail\n"
        "  why: ValueError: no such thing\n"
        "  fix: check input_to_model and kwargs; the model must run when called by itself"
    )


def test_nothing_is_printed_and_nobody_is_warned(capfd, recwarn):
    tbscope.trace(nn.Sequential(nn.Linear(2, 2), nn.Dropout()), torch.randn(1, 2))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


@pytest.mark.parametrize(
    ("x", "fix"),
    [
        (
            torch.randn(2, 3, dtype=torch.float64),
            "give inputs of the model's dtype: Linear[enc.0.0] has weight in float32, "
            "got input in float64; use .to(torch.float32)",
        ),
        (
            torch.randn(2, 3, device="meta"),
            "bring input and model together: Linear[enc.0.0] has weight on cpu, "
            "got input on meta; use .to('cpu')",
        ),
    ],
    ids=["dtype", "device"],
)
def test_an_input_of_another_dtype_or_device_is_told_with_what_to_do(x, fix):
    with pytest.raises(tbscope.TraceError) as error:
        tbscope.trace(Encoder(), x)
    assert error.value.fix == fix


def test_a_partial_graph_ends_with_the_operation_that_raised():
    graph = tbscope.trace(Encoder(), torch.randn(2, 9), partial=True)
    graph.verify()
    failed = graph.nodes[-1]
    assert failed.op == "linear"
    assert [value.producer.name for value in failed.inputs] == [
        "x",
        "enc.0.0.weight",
        "enc.0.0.bias",
    ]
    assert failed.attributes["error"].startswith("RuntimeError: ")
    assert graph.notes[-1].text.startswith("the run ended here: RuntimeError: ")
    nodes = {node.name: node for node in tbscope.to_graph_def(graph).node}
    assert b"mat1 and mat2" in nodes["enc/0/0"].attr["error"].s


@pytest.mark.parametrize("in_an_operation", [True, False])
def test_the_note_on_the_end_of_a_run_is_about_the_operation_that_raised_if_one_did(
    in_an_operation,
):
    def run(x):
        y = x.relu()
        if in_an_operation:
            y @ torch.ones(7)
        raise ValueError("no operation")

    graph = tbscope.trace(run, torch.ones(2, 9), partial=True)
    (note,) = (note for note in graph.notes if note.text.startswith("the run ended here: "))
    if in_an_operation:
        assert note.node is graph.nodes[-1]
        assert note.node.op == "matmul"
        assert note.source == note.node.source
        assert note.source.file == "test_trace_errors.py"
    else:
        assert (note.node, note.source) == (None, None)


def test_a_partial_graph_of_a_model_that_does_not_raise_is_whole():
    net, x = Encoder(), torch.randn(2, 3)
    assert str(tbscope.trace(net, x, partial=True)) == str(tbscope.trace(net, x))


@pytest.mark.parametrize(
    "model", [lambda x: x.as_subclass(int), lambda x: x.untyped_storage().resize_(-8)]
)
def test_what_torch_raises_where_a_function_of_ours_calls_it_is_not_laid_to_the_watching(model):
    with pytest.raises(tbscope.TraceError, match="the model raised while it was being traced"):
        tbscope.trace(model, torch.randn(2))


def test_a_failure_of_the_watching_is_not_laid_to_the_model():
    from tbscope.sources.eager.record import recorder

    # Code that stands in the recorder's file, as a traceback shows it.
    mistake = compile("raise RuntimeError('a mistake of ours')", recorder.__file__, "exec")
    with pytest.raises(tbscope.TraceError) as error:
        tbscope.trace(lambda x: exec(mistake), torch.randn(2))
    assert str(error.value) == (
        "tbscope itself failed while it watched the model, in lambda\n"
        "  why: RuntimeError: a mistake of ours\n"
        "  fix: report it with the traceback above; the model is as it was before"
    )
