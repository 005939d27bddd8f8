"""What forward changes beside the model: told in notes, and no stand-in is left there."""

import functools
import itertools
import random
import tempfile
import threading

import pytest
import torch
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward

import tbscope

X = torch.ones(1, 2)
COUNT = 0
CALLS: list[int] = []
TABLE = torch.zeros(2)
MASKS: dict[int, torch.Tensor] = {}
RANDOM = random.Random(0)


class State:
    count = 0


class Doing(nn.Module):
    """Does something in forward."""

    latest = None

    def __init__(self, action=None):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.action = action

    def forward(self, x):
        if self.action is not None:
            self.action()
        return self.fc(x)


class Counting(Doing):
    def forward(self, x):
        self.count()
        return super().forward(x)

    def count(self):
        global COUNT  # noqa: PLW0603 (what models do)
        COUNT += 1


def helper():
    helper.calls = getattr(helper, "calls", 0) + 1


def below():
    CALLS.append(1)


def above():
    below()


def count_state():
    State.count += 1


def write_table():
    TABLE.add_(1)


def keep_latest():
    Doing.latest = torch.ones(2)


def draw():
    RANDOM.random()


def told(model, **options):
    notes = tbscope.trace(model, X, **options).notes
    return [note.text for note in notes if note.text.startswith("the run changed")]


def note(what):
    return f"the run changed {what}, which is not put back"


@pytest.mark.parametrize("steps", [1, 4])
def test_how_often_a_measured_model_ran_is_told_where_something_is_not_put_back(steps):
    State.count = 0
    notes = tbscope.trace(Doing(count_state), X, profile=steps).notes
    assert [note.text for note in notes if note.text.startswith("for profile=")] == [
        f"for profile={steps} the model ran {State.count} times: what is not put back may have "
        "changed in each of them"
    ]
    assert State.count > 2 * steps
    plain = tbscope.trace(Doing(lambda: None), X, profile=steps).notes
    assert not any(note.text.startswith("for profile=") for note in plain)


@pytest.mark.parametrize(
    ("action", "what"),
    [
        (below, f"the global CALLS of {__name__}"),
        (above, f"the global CALLS of {__name__}"),
        (helper, "the attributes of the function helper"),
        (count_state, f"the global State of {__name__}"),
        (write_table, f"the global TABLE of {__name__}"),
        (keep_latest, "Doing.latest"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
@pytest.mark.parametrize("options", [{}, {"profile": 1}], ids=str)
def test_what_code_changed_beside_the_model_is_told(action, what, options):
    assert told(Doing(action), **options) == [note(what)]


def test_what_code_only_reads_is_not_told():
    seen = [1]
    assert told(Doing(lambda: (seen[0], CALLS, MASKS.get(1), TABLE + 1, State.count))) == []


def test_a_global_that_a_method_of_the_model_counts_is_told():
    assert told(Counting()) == [note(f"the global COUNT of {__name__}")]


def test_a_variable_around_a_function_is_told():
    count = 0

    def run(x):
        nonlocal count
        count += 1
        return x + 1

    [line] = told(run)
    assert line == note(f"the variable count around {run.__qualname__}")
    assert count == 1


def test_what_a_hook_collects_stays_collected():
    seen = []
    model = Doing()
    model.fc.register_forward_hook(lambda module, args, out: seen.append(out))
    [line] = told(model)
    assert "the variable seen around" in line
    assert len(seen) == 1


def test_a_generator_that_code_names_is_as_it_was():
    before = RANDOM.getstate()
    assert told(Doing(draw)) == []
    assert RANDOM.getstate() == before


def opened():
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the test closes it)
    file.write(b"abc")
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("make", "change", "what"),
    [
        (itertools.count, next, "a count"),
        (lambda: iter([1, 2]), next, "a list_iterator"),
        (lambda: (number for number in range(3)), next, "a generator"),
        (threading.Lock, lambda held: held.acquire(), "a lock"),
        (threading.Event, lambda held: held.set(), "an Event"),
        (opened, lambda held: held.read(1), "a BufferedRandom"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_only_goes_on_is_told_where_it_did(make, change, what):
    model = Doing()
    model.held = make()
    assert told(model) == []
    model.action = functools.partial(change, model.held)
    assert told(model) == [note(f"{what} (Doing.held)")]
    getattr(model.held, "close", list)()


def test_more_than_twenty_of_them_are_counted():
    model = Doing()
    model.held = [itertools.count() for _ in range(25)]
    model.action = lambda: [next(one) for one in model.held]
    texts = [one.text for one in tbscope.trace(model, X).notes]
    assert texts.count(note("a count")) == 20
    assert "and 5 more things that are not put back" in texts


def keep_mask():
    if 2 not in MASKS:
        MASKS[2] = torch.ones(2)
    return MASKS[2]


@functools.lru_cache
def remembered(size):
    return torch.ones(size)


@pytest.mark.parametrize(("fake", "kept"), [(True, []), (False, [2])])
def test_no_stand_in_stays_in_a_global(fake, kept):
    MASKS.clear()
    told(Doing(keep_mask), fake=fake)
    assert [*MASKS] == kept
    assert type(keep_mask()) is torch.Tensor


@pytest.mark.parametrize("fake", [True, False])
def test_no_stand_in_stays_at_a_class(fake):
    Doing.latest = None
    told(Doing(keep_latest), fake=fake)
    assert (Doing.latest is None) == fake


@pytest.mark.parametrize("fake", [True, False])
@pytest.mark.parametrize("filled", [True, False])
def test_a_cache_forgets_what_a_run_began_or_left_a_stand_in_in(fake, filled):
    remembered.cache_clear()
    first = remembered(3) if filled else None
    lines = told(Doing(lambda: remembered(2)), fake=fake)
    assert type(remembered(2)) is torch.Tensor
    assert lines == [note(f"the global remembered of {__name__}")] * filled
    assert (remembered(3) is first) == (filled and not fake)


def test_a_stand_in_in_a_variable_around_a_function_is_gone():
    latest = None

    def run(x):
        nonlocal latest
        latest = x + 1
        return latest

    tbscope.trace(run, X, fake=True)
    assert latest is None
    tbscope.trace(run, X)
    assert latest.tolist() == [[2, 2]]


class Remembering(nn.Module):
    @functools.lru_cache  # noqa: B019 (what models do)
    def mask(self, size):
        return torch.ones(size)

    def forward(self, x):
        return x * self.mask(2)


@pytest.mark.parametrize("options", [{}, {"fake": True}], ids=str)
def test_a_method_forgets_what_it_remembered_of_a_run(options):
    model = Remembering()
    assert told(model, **options) == []
    assert Remembering.mask.cache_info().currsize == 0
    assert type(model.mask(2)) is torch.Tensor
    Remembering.mask.cache_clear()


# -- hooks of backward passes ------------------------------------------------------------------

STEPPING = {}


def by_closure(model, optimizers, seen):
    def hook(parameter):
        optimizers[parameter].step()
        seen.append(parameter)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)


def by_global(model, optimizers, seen):
    STEPPING.clear()
    STEPPING.update(optimizers)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_global)


def step_global(parameter):
    STEPPING[parameter].step()


def by_default(model, optimizers, seen):
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(lambda one, by=optimizer: by.step())


def by_method(model, optimizers, seen):
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(Steps(optimizer).run)


def by_partial(model, optimizers, seen):
    for parameter, optimizer in optimizers.items():
        hook = functools.partial(Steps.run, Steps(optimizer))
        parameter.register_post_accumulate_grad_hook(hook)


class Steps:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def run(self, parameter):
        self.optimizer.step()


def by_autograd(model, optimizers, seen):
    kept = []
    for parameter, optimizer in optimizers.items():
        node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
        node.register_hook(lambda *_, by=optimizer: by.step())
        kept.append(node)
    model.kept_nodes = lambda: kept


def by_modules(model, optimizers, seen):
    def after(module, given, got):
        for parameter in model[2].parameters():
            optimizers[parameter].step()
        seen.append(module)

    def before(module, got):
        seen.append(module)

    model[0].register_full_backward_hook(after)
    model[2].register_full_backward_pre_hook(before)


def by_schedule(model, optimizers, seen):
    schedules = {
        parameter: torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for parameter, optimizer in optimizers.items()
    }

    def hook(parameter):
        optimizers[parameter].step()
        schedules[parameter].step()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(hook)


def by_hooks_of_optimizers(model, optimizers, seen):
    by_closure(model, optimizers, [])
    for optimizer in optimizers.values():
        optimizer.register_step_pre_hook(lambda *_: seen.append(1))
        optimizer.register_step_post_hook(lambda *_: seen.append(2))


def by_count(model, optimizers, seen):
    count, average = 0, {each: each.detach().clone() for each in model.parameters()}

    def hook(parameter):
        nonlocal count
        count += 1
        with torch.no_grad():
            average[parameter].mul_(0.9).add_(parameter + count)
        seen[:] = [count, [each.tolist() for each in average.values()]]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    seen.append(0)


def by_gradients(model, optimizers, seen):
    for number, parameter in enumerate(model.parameters()):
        parameter.register_hook(seen.append)
        parameter.register_hook(lambda gradient, number=number: seen.append(number))


def by_torch(model, optimizers, seen):
    given = {"lr": 0.1, "momentum": 0.9}
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), given)
    for parameter in model.parameters():
        optimizers[parameter] = parameter._in_backward_optimizers[0]


REGISTERED = [
    *(by_closure, by_global, by_default, by_method, by_partial, by_autograd, by_modules),
    *(by_schedule, by_hooks_of_optimizers, by_count, by_gradients, by_torch),
]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("register", REGISTERED)
@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_what_hooks_of_a_backward_pass_do_is_put_back_whole(register, kind):
    model, seen = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), []
    given = {"lr": 0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {})}
    optimizers = {each: kind([each], **given) for each in model.parameters()}
    register(model, optimizers, seen)
    # So that each optimizer has a state.
    model(X).sum().backward()

    def state():
        return repr(
            [seen, *(each.state_dict() for each in optimizers.values()), *model.parameters()]
        )

    before = state()
    graph = tbscope.trace(model, X, loss=torch.sum, backward=True)
    assert state() == before
    assert [note.text for note in graph.notes if note.topic == "run"] == []
    # They did run, and are drawn.
    if register not in (by_gradients, by_count):
        assert "SGD" in str(graph) or "Adam" in str(graph)
    model(X).sum().backward()
    assert state() != before


def test_what_other_hooks_do_stays_and_is_told():
    model, seen = nn.Linear(2, 2), []
    model.register_forward_hook(lambda module, given, got: seen.append(1))
    graph = tbscope.trace(model, X, loss=torch.sum, backward=True)
    assert seen == [1]
    (note,) = [note.text for note in graph.notes if note.topic == "run"]
    assert note.startswith("the run changed the variable seen around")


def test_a_hook_of_an_accumulated_gradient_that_forward_registers_is_gone_after():
    class Registers(nn.Linear):
        def forward(self, x):
            self.weight.register_post_accumulate_grad_hook(lambda weight: None)
            return super().forward(x)

    model = Registers(2, 2)
    tbscope.trace(model, X, loss=torch.sum, backward=True)
    assert not model.weight._post_accumulate_grad_hooks
