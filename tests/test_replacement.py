"""Attributes that are replaced while anyone needs them to be, and put back by the last one."""

import sys
from functools import partial
from types import SimpleNamespace

import pytest

from tbscope.sources.eager.watch.patch import Patches, SharedBlock


def test_the_last_of_several_users_puts_the_originals_back():
    owner = SimpleNamespace(f=1, g=2)
    replaced = Patches()
    f, g = replaced.of(owner, "f")(3), replaced.of(owner, "g")(4)
    with replaced:
        with replaced:
            assert (owner.f, owner.g) == (3, 4)
        assert (owner.f, owner.g) == (3, 4)
        assert (f.original, g.original) == (1, 2)
    assert (owner.f, owner.g) == (1, 2)


def test_what_somebody_else_put_there_meanwhile_is_left_alone():
    owner = SimpleNamespace(f=1, g=2)
    replaced = Patches()
    replaced.of(owner, "f")(3)
    replaced.of(owner, "g")(4)
    with replaced:
        owner.f = 5
    assert (owner.f, owner.g) == (5, 2)


def test_another_name_counts_from_the_first_user_on_and_for_no_later_one():
    owner, names = SimpleNamespace(f=1, g=2), ["g"]
    replaced = Patches()
    replaced.of(owner, lambda: names[-1])(3)
    with replaced:
        names.append("f")
        with replaced:
            assert (owner.f, owner.g) == (1, 3)
    assert (owner.f, owner.g) == (1, 2)


def test_a_class_method_is_a_class_method_again_after_it():
    class Owner:
        @classmethod
        def name(cls):
            return cls.__name__

    class Heir(Owner):
        pass

    replaced = Patches()
    method = replaced.of(Owner, "name")(
        classmethod(lambda cls: method.original.__get__(None, cls)() + "!")
    )
    with replaced:
        assert (Owner.name(), Heir.name()) == ("Owner!", "Heir!")
    assert (Owner.name(), Heir.name()) == ("Owner", "Heir")


def test_a_method_of_the_class_above_is_inherited_again_after_it():
    class Owner:
        def name(self):
            return "owner"

    class Heir(Owner):
        pass

    replaced = Patches()
    replaced.of(Heir, "name")(lambda self: "heir")
    with replaced:
        assert (Owner().name(), Heir().name()) == ("owner", "heir")
    assert "name" not in vars(Heir)


@pytest.mark.parametrize("begins", [True, False])
def test_a_finalizer_may_leave_a_block_while_its_thread_enters_or_leaves_it(begins):
    owner, block = SimpleNamespace(f=1), Patches()
    block.of(owner, "f")(3)
    act = block.__enter__ if begins else partial(block.__exit__, None, None, None)
    lines = 0
    while True:
        block.__enter__()
        if not begins:
            block.__enter__()
        if not left_at(lines, block, act):
            break
        assert owner.f == (3 if begins else 1)
        if begins:
            block.__exit__(None, None, None)
        assert owner.f == 1
        lines += 1
    assert lines > 3


def left_at(number, block, act):
    """Have a block left at one of the lines that an action runs; tell whether it has so many."""
    steps, ended = iter(range(number)), []

    def trace(frame, event, arg):
        if event == "line" and not ended and next(steps, None) is None:
            ended.append(True)
            block.__exit__(None, None, None)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return bool(ended)


def test_a_change_that_fails_has_no_user_and_may_be_made_later():
    made = []

    def change():
        if not made:
            made.append("failed")
            raise KeyError
        made.append("made")
        return lambda: made.append("undone")

    block = SharedBlock(change)
    with pytest.raises(KeyError), block:
        pass
    with block:
        pass
    assert made == ["failed", "made", "undone"]
