"""Drawing what torch.compile captures leaves model and compiler as they were."""

import copy
import itertools
import warnings
from contextlib import contextmanager, nullcontext
from functools import partial
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tbscope
from tests.compiled_models import Branches, Linear, Prints, compiler_state, entries
from tests.sweeps import sampled

X = torch.ones(2, 3)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def counting():
    """Give a backend that counts what it compiles, and the counts."""
    compiled = []

    def backend(module, inputs):
        compiled.append([tuple(each.shape) for each in inputs])
        return module.forward

    return backend, compiled


@pytest.mark.parametrize("kind", [Linear, Prints, Branches])
def test_what_was_compiled_before_stays_compiled(kind):
    model = kind()
    backend, compiled = counting()
    own = torch.compile(model, backend=backend)
    own(torch.ones(2, 4))
    before = len(compiled)

    tbscope.compile_graphs(model, torch.ones(2, 4))
    own(torch.ones(2, 4))

    assert len(compiled) == before > 0


def test_the_compiler_is_as_it_was():
    torch.compile(Prints(), backend="eager")(torch.ones(2, 4))
    before = compiler_state()

    tbscope.compile_graphs(Prints(), torch.ones(3, 4))

    assert compiler_state() == before


def test_a_size_that_was_drawn_is_no_size_that_the_compiler_has_seen():
    model = Linear()
    backend, compiled = counting()

    tbscope.compile_graphs(model, torch.ones(2, 4))
    torch.compile(model, backend=backend)(torch.ones(3, 4))

    assert [shape for shape in compiled[0] if len(shape) == 2 and shape[0] == 3] == [(3, 4)]
    assert all(type(size) is int for shapes in compiled for shape in shapes for size in shape)


@pytest.mark.parametrize("compiled_before", [True, False])
def test_a_model_drawn_often_is_compiled_all_the_same(compiled_before):
    model = Linear()
    backend, compiled = counting()
    own = torch.compile(model, backend=backend, dynamic=False)
    if compiled_before:
        own(torch.ones(1, 4))

    for size in range(2, 14):
        tbscope.compile_graphs(model, torch.ones(size, 4), dynamic=False)
    own(torch.ones(2, 4))

    assert len(compiled) == 1 + compiled_before


def test_a_model_that_is_compiled_can_be_drawn_twice():
    model, x = nn.Sequential(nn.Linear(4, 4)), torch.rand(2, 4)
    torch.compile(model, backend="eager")(x)
    # Entries of the first drawing stay beside those of the model, without a backend.
    first, second = (tbscope.compile_graphs(model, x) for _ in range(2))
    assert str(first) == str(second)


def test_nothing_is_kept_of_what_was_compiled_to_be_drawn():
    model = Prints()

    tbscope.compile_graphs(model, torch.ones(2, 4))

    assert entries(model) == 0


def test_what_was_left_to_python_may_be_compiled_afterwards():
    def choose(x):
        return x * 2 if x.sum().item() > 0 else x

    with torch._dynamo.config.patch(suppress_errors=False):
        tbscope.compile_graphs(choose, torch.ones(2))
    backend, compiled = counting()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        torch.compile(choose, backend=backend)(torch.ones(2))

    assert compiled


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_as_it_was(training):
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout(), Prints())
    model.train(not training)
    before = copy.deepcopy(model.state_dict()), torch.get_rng_state()

    tbscope.compile_graphs(model, torch.ones(3, 4), training=training, grad=True)

    after = model.state_dict()
    assert all(torch.equal(after[name], held) for name, held in before[0].items())
    assert torch.equal(torch.get_rng_state(), before[1])
    assert model.training is not training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_a_function_finds_is_as_it_was():
    norm = torch.nn.BatchNorm1d(4)
    norm.weight.grad = torch.ones(4)
    before = copy.deepcopy(norm.state_dict())

    def step(x):
        loss = norm(x).sum()
        loss.backward()
        return loss

    graphs = tbscope.compile_graphs(step, torch.randn(3, 4), training=True, grad=True)

    assert [call.training for call in graphs["0 step"].calls] == [True]
    assert all(torch.equal(norm.state_dict()[name], held) for name, held in before.items())
    assert torch.equal(norm.weight.grad, torch.ones(4))
    assert norm.bias.grad is None
    graphs = tbscope.compile_graphs(step, torch.randn(3, 4), grad=True)
    assert [call.training for call in graphs["0 step"].calls] == [False]
    assert norm.training


@pytest.mark.parametrize("off", ["setting", "stance"])
def test_a_compiler_that_stands_by_is_asked_and_stands_by_still(off):
    config = torch._dynamo.config
    with config.patch(disable=off == "setting"):
        if off == "stance":
            torch.compiler.set_stance("force_eager")
        try:
            graphs = tbscope.compile_graphs(Linear(), torch.ones(2, 4))
            backend, compiled = counting()
            torch.compile(Linear(), backend=backend)(torch.ones(2, 4))
        finally:
            torch.compiler.set_stance("default")

    assert (len(graphs), compiled) == (1, [])


def test_inputs_are_as_they_were():
    given = torch.ones(2, 4)

    def model(x):
        x.add_(1)
        print("between")
        return x.mul_(2)

    tbscope.compile_graphs(model, given)

    assert torch.equal(given, torch.ones(2, 4))


def test_a_parameter_that_a_graph_writes_into_is_as_it_was():
    class Net(Linear):
        def forward(self, x):
            with torch.no_grad():
                self.fc.weight.mul_(2)
            return self.fc(x)

    model = Net()
    before = model.fc.weight.detach().clone()

    graphs = tbscope.compile_graphs(model, torch.ones(2, 4))

    assert len(graphs) >= 1
    assert torch.equal(model.fc.weight, before)


def test_a_model_that_compiles_itself_is_drawn_and_compiled_still():
    model = Linear()
    backend, compiled = counting()
    model.compile(backend=backend)

    graphs = tbscope.compile_graphs(model, torch.ones(2, 4))

    assert (len(graphs), compiled) == (1, [])
    model(torch.ones(2, 4))
    assert len(compiled) == 1


@pytest.mark.parametrize("how", ["trace", "add_graph", "writer"])
def test_compiled_code_can_draw_a_model_and_is_compiled_around_it(how, tmp_path):
    net, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)
    with tbscope.SummaryWriter(str(tmp_path)) as writer:
        draw = {
            "trace": tbscope.trace,
            "add_graph": partial(tbscope.add_graph, writer),
            "writer": writer.add_graph,
        }[how]

        def step(x):
            graph = draw(net, x)
            return net(x) * 2, graph

        backend, compiled = counting()
        result, graph = torch.compile(step, backend=backend)(x)
    assert torch.equal(result, net(x) * 2)
    assert str(graph) == str(tbscope.trace(net, x))
    assert len(compiled) == 1


# -- random numbers ----------------------------------------------------------------------------


class Dropping(nn.Module):
    def __init__(self, rate, *, checkpointed):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 8), nn.Dropout(rate), nn.Linear(8, 2)
        self.checkpointed = checkpointed

    def part(self, x):
        return self.drop(self.first(x))

    def forward(self, x):
        part = checkpoint(self.part, x, use_reentrant=False) if self.checkpointed else self.part(x)
        return self.last(part)


def losses(backend, draw, *, rate, checkpointed, in_place):
    """Give the losses of a training in which one step is drawn somehow."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Dropping(rate, checkpointed=checkpointed)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    if in_place:
        model.compile(backend=backend)
    called = model if in_place else torch.compile(model, backend=backend)
    for number in range(4):
        optimizer.zero_grad()
        with draw(model) if number == 1 else nullcontext():
            loss = called(torch.ones(8, 4)).pow(2).mean()
            loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@contextmanager
def watched(model):
    with TemporaryDirectory() as folder, tbscope.SummaryWriter(folder) as writer:
        writer.watch(model)
        yield


@contextmanager
def drawn(model):
    x = torch.ones(8, 4)
    tbscope.trace(model, x, training=True, loss=torch.sum, backward=True)
    yield


# Each pair of values is in one of the few.
DRAWS = sampled(
    itertools.product(["eager", "aot_eager"], [0.5, 0.0], [True, False], [True, False]),
    [
        *(("eager", 0.5, True, True), ("eager", 0.0, False, False)),
        *(("aot_eager", 0.5, False, True), ("aot_eager", 0.0, True, True)),
        *(("aot_eager", 0.5, True, False), ("eager", 0.0, True, False)),
    ],
)


@pytest.mark.parametrize(("backend", "rate", "checkpointed", "in_place"), DRAWS)
def test_other_random_numbers_than_those_of_compiled_code_are_warned_of(
    backend, rate, checkpointed, in_place
):
    given = {"rate": rate, "checkpointed": checkpointed, "in_place": in_place}
    plain = losses(backend, lambda model: nullcontext(), **given)
    for draw in (tbscope.record, watched, drawn):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = losses(backend, draw, **given)
        ours = [each for each in told if "tbscope records compiled" in str(each.message)]
        assert len(ours) == (found != plain)
        assert [each.filename for each in ours] in ([], [__file__])
        if draw is drawn:
            # The way out, which the warning names.
            assert found == plain


def test_a_recording_of_what_inductor_compiles_is_warned_of_unless_it_draws_torchs_numbers():
    compiled = torch.compile(nn.Dropout(), backend="inductor")
    quiet = torch.compile(nn.Dropout(), backend="inductor", options={"fallback_random": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tbscope.record():
            quiet(X)
        with tbscope.record():
            compiled.eval()(X)
        with tbscope.record():
            nn.Dropout()(X)
        tbscope.trace(compiled, X, training=True)
    with pytest.warns(UserWarning, match="fallback_random = True"), tbscope.record():
        compiled.train()(X)
    taken = torch.compile(nn.Dropout(), backend=tbscope.compile_backend("inductor"))
    with pytest.warns(UserWarning, match="draw other numbers"), tbscope.record():
        taken(X)
