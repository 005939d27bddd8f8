"""What forward changes beside the model: told in notes, and no stand-in is left there."""

import functools
import itertools
import random
import tempfile
import threading

import pytest
import torch
from torch import nn

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
