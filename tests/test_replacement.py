"""Attributes that are replaced while anyone needs them to be, and put back by the last one."""

from types import SimpleNamespace

from tbscope.sources.eager.watch.replacement import Replacements


def test_the_last_of_several_users_puts_the_originals_back():
    owner = SimpleNamespace(f=1, g=2)
    replaced = Replacements()
    f, g = replaced.of(owner, "f")(3), replaced.of(owner, "g")(4)
    with replaced:
        with replaced:
            assert (owner.f, owner.g) == (3, 4)
        assert (owner.f, owner.g) == (3, 4)
        assert (f.original, g.original) == (1, 2)
    assert (owner.f, owner.g) == (1, 2)


def test_what_somebody_else_put_there_meanwhile_is_left_alone():
    owner = SimpleNamespace(f=1, g=2)
    replaced = Replacements()
    replaced.of(owner, "f")(3)
    replaced.of(owner, "g")(4)
    with replaced:
        owner.f = 5
    assert (owner.f, owner.g) == (5, 2)


def test_another_name_counts_from_the_first_user_on_and_for_no_later_one():
    owner, names = SimpleNamespace(f=1, g=2), ["g"]
    replaced = Replacements()
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

    replaced = Replacements()
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

    replaced = Replacements()
    replaced.of(Heir, "name")(lambda self: "heir")
    with replaced:
        assert (Owner().name(), Heir().name()) == ("owner", "heir")
    assert "name" not in vars(Heir)
