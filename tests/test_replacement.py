"""Attributes that are replaced while anyone needs them to be, and put back by the last one."""

from types import SimpleNamespace

from tbscope.sources.eager.watch.replacement import Replacement


def test_the_last_of_several_users_puts_the_original_back():
    owner = SimpleNamespace(f=1)
    replacement = Replacement(owner, "f")
    with replacement.by(2):
        with replacement.by(2):
            assert owner.f == 2
        assert owner.f == 2
        assert replacement.original == 1
    assert owner.f == 1


def test_what_somebody_else_put_there_meanwhile_is_left_alone():
    owner = SimpleNamespace(f=1)
    with Replacement(owner, "f").by(2):
        owner.f = 3
    assert owner.f == 3


def test_another_name_counts_from_the_first_user_on_and_for_no_later_one():
    owner = SimpleNamespace(f=1, g=2)
    replacement = Replacement(owner, "f")
    with replacement.by(3, name="g"):
        assert (owner.f, owner.g) == (1, 3)
        with replacement.by(3, name="f"):
            assert (owner.f, owner.g) == (1, 3)
    assert (owner.f, owner.g) == (1, 2)


def test_a_class_method_is_a_class_method_again_after_it():
    class Owner:
        @classmethod
        def name(cls):
            return cls.__name__

    class Heir(Owner):
        pass

    replacement = Replacement(Owner, "name")
    substitute = classmethod(lambda cls: replacement.original.__get__(None, cls)() + "!")
    with replacement.by(substitute):
        assert (Owner.name(), Heir.name()) == ("Owner!", "Heir!")
    assert (Owner.name(), Heir.name()) == ("Owner", "Heir")
