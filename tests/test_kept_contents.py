"""Whatever attributes and inputs lead to, of any package: after a trace it is as it was."""

import functools
import gc
import itertools
import queue
import random
import threading
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import tbscope
from tbscope.sources.eager.restore import object_snapshot
from tbscope.sources.eager.restore.object_snapshot import MOST_ARRAY_BYTES, MOST_OBJECTS
from tests.kept_things import THINGS, Box
from tests.sweeps import sampled

X = torch.ones(1, 2)
MODES = [{}, {"training": True}, {"grad": True}, {"fake": True}, {"partial": True}, {"profile": 1}]


class Holding(nn.Module):
    """Holds a thing, and changes it in forward."""

    def __init__(self, held, change):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.held = held
        self.change = change

    def forward(self, x):
        y = self.fc(x)
        self.change(self.held)
        return y


class Given(nn.Module):
    """Is given a thing, and changes it in forward."""

    def __init__(self, change):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.change = change

    def forward(self, x, held):
        self.change(held)
        return self.fc(x)


WAYS = {
    "attribute": lambda held, change, **options: tbscope.trace(Holding(held, change), X, **options),
    "argument": lambda held, change, **options: tbscope.trace(Given(change), (X, held), **options),
    "keyword": lambda held, change, **options: tbscope.trace(
        Given(change), X, kwargs={"held": held}, **options
    ),
    "partial": lambda held, change, **options: tbscope.trace(
        functools.partial(Given(change), held=held), X, **options
    ),
}


# Things take the ways by turns.
HELD = sampled(
    itertools.product(THINGS, WAYS),
    [(name, [*WAYS][at % len(WAYS)]) for at, name in enumerate(THINGS)],
)


@pytest.mark.parametrize(("name", "way"), HELD)
def test_a_thing_is_as_it_was(name, way):
    make, change, tell = THINGS[name]
    other = make()
    change(other)
    for options in MODES:
        held = make()
        before = repr(tell(held))
        assert repr(tell(other)) != before
        WAYS[way](held, change, **options)
        assert repr(tell(held)) == before, options


@pytest.mark.parametrize("options", MODES, ids=str)
def test_a_thing_is_as_it_was_where_forward_raises(options):
    def fail(held):
        held.add(1)
        raise ArithmeticError

    held = Box(Box())
    if options.get("partial"):
        WAYS["attribute"](held, fail, **options)
    else:
        with pytest.raises(tbscope.TraceError):
            WAYS["attribute"](held, fail, **options)
    assert held.items == []


def test_a_model_that_holds_a_cache_answers_as_before():
    make, change, _ = THINGS["DynamicCache"]
    held = make()
    WAYS["attribute"](held, change, fake=True)
    change(held)
    assert held.get_seq_length() == 2
    assert type(held.layers[0].keys) is torch.Tensor


def test_what_other_threads_work_on_is_left_alone():
    class Worker:
        def __init__(self):
            self.thread = threading.Thread()
            self.sent = []

    held, beside = Worker(), [0]
    WAYS["attribute"]([held, beside], lambda pair: (pair[0].sent.append(1), pair[1].append(1)))
    assert (held.sent, beside) == ([1], [0])
    held.thread = threading.Lock()
    WAYS["attribute"](held, lambda held: held.sent.append(2))
    assert held.sent == [1]


def test_what_a_queue_was_sent_is_not_sent_again():
    held = queue.Queue()
    held.put(1)
    WAYS["attribute"](held, lambda held: held.get())
    assert held.qsize() == 0


def test_a_thing_without_state_that_could_be_asked_for_is_no_failure():
    graph = WAYS["attribute"](random.SystemRandom(), lambda held: held.random())
    assert graph.outputs


LEFT_OUT = (
    "the model and its inputs lead to more than 200,000 objects, or 268,435,456 bytes in arrays of "
    "numpy: what the run changed in the others is not put back"
)


@pytest.mark.parametrize("count", [1_000, MOST_OBJECTS])
def test_more_objects_than_are_looked_into_are_told_of(count):
    # Modules are looked into however many objects there are.
    module = nn.Identity()
    held = [*([0] for _ in range(count)), module]

    def change(held):
        held[0].append(1)
        held[-2].append(1)
        module.mark = 1

    graph = WAYS["attribute"](held, change)
    beyond = count == MOST_OBJECTS
    assert (held[0], held[-2]) == ([0], [0, 1] if beyond else [0])
    assert not hasattr(module, "mark")
    assert [note.text for note in graph.notes if "objects" in note.text] == [LEFT_OUT] * beyond


def test_an_array_too_large_to_be_copied_is_told_of():
    small, large = np.zeros(10), np.zeros(MOST_ARRAY_BYTES + 1, np.uint8)

    def change(held):
        small.fill(1)
        large[0] = 1

    graph = WAYS["attribute"]([small, large], change)
    assert (small[0], large[0]) == (0, 1)
    assert [note.text for note in graph.notes if "numpy" in note.text] == [LEFT_OUT]


def test_arrays_are_copied_up_to_a_number_of_bytes_together(monkeypatch):
    monkeypatch.setattr(object_snapshot, "MOST_ARRAY_BYTES", 100)
    locked, first, beyond, last = (np.zeros(size, np.uint8) for size in (200, 60, 50, 40))
    locked.flags.writeable = False

    def change(held):
        for array in (first, beyond, last):
            array[0] += 1

    graph = WAYS["attribute"]([locked, first, beyond, last], change)
    assert (first[0], beyond[0], last[0]) == (0, 1, 0)
    assert [note.text for note in graph.notes if "numpy" in note.text]


def test_what_is_held_by_nobody_else_lives_no_longer_than_the_trace():
    held = Box(Box())
    gone = weakref.ref(held.inner)
    gc.disable()
    try:
        WAYS["attribute"](held, lambda held: held.add(1))
        held.inner = None
        assert gone() is None
    finally:
        gc.enable()
