"""Checks and kinds that many options share: truths, words, texts, functions of the user's.

Types are asked for first: comparing an object, or asking for its truth, runs its own code.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from tbscope.errors import ArgumentError
from tbscope.messages import error_text, shown

__all__ = [
    "Dtypes",
    "InputSize",
    "ask",
    "attribute_of",
    "check_choice",
    "check_truth",
    "entries_of",
    "is_text",
    "is_word",
    "names_of",
    "plain_text",
    "table_of",
]

InputSize: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Sequence[int]]
"""The size of an input, the sizes of several, or sizes by the names of forward's parameters."""

Dtypes: TypeAlias = Any
"""An element type of torch or its name, one for each input, or types by the same names."""

_Thing = TypeVar("_Thing")
_Given = TypeVar("_Given")


def is_word(value: object, words: Collection[object]) -> bool:
    """Tell whether a value is one of some texts."""
    return type(value) is str and value in words


def is_text(value: object) -> bool:
    """Tell whether a value is a text that files can hold: one without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        str.encode(value, "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def plain_text(value: _Thing) -> "_Thing | str":
    """Return a text as one that no class of the user's changes; anything else as it is."""
    return str.__str__(value) if isinstance(value, str) else value


def check_truth(name: str, value: object, *, none: str = "") -> None:
    """Check that an option is True or False.

    Args:
        name: What it is called.
        value: What was given.
        none: What None means; empty where it is no value of the option.
    Raises:
        ArgumentError: It is something else: a 0, a text, an array.
    """
    if isinstance(value, bool) or (none and value is None):
        return
    if none:
        why, fix = f"{name} is True, False, or None for {none}", f"{name}=None for {none}"
    else:
        why, fix = f"{name} is True or False", f"{name}=True, or leave {name} out"
    raise ArgumentError(f"{name}={shown(value)} is no answer to yes or no", why=why, fix=fix)


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Check that an option is one of some texts.

    Args:
        name: What it is called.
        value: What was given.
        choices: The texts, two or more.
    Raises:
        ArgumentError: It is something else.
    """
    if is_word(value, choices):
        return
    *others, last = map(repr, choices)
    raise ArgumentError(
        f"{name} cannot be {shown(value)}",
        why=f"{name} is {', '.join(others)} or {last}",
        fix=f"{name}={choices[0]!r}, or leave {name} out",
    )


def names_of(given: Mapping[Any, Any], *, option: str) -> list[Any]:
    """Return the keys of a mapping of the user's.

    Raises:
        ArgumentError: It raises while it is read.
    """
    try:
        return list(given)
    except Exception as error:
        raise _unreadable(given, option, error) from error


def entries_of(given: Mapping[Any, Any], *, option: str) -> dict[Any, Any]:
    """Return the entries of a mapping of the user's, read once.

    Raises:
        ArgumentError: It raises while it is read.
    """
    try:
        return {key: given[key] for key in given}
    except Exception as error:
        raise _unreadable(given, option, error) from error


def _unreadable(given: object, option: str, error: Exception) -> ArgumentError:
    return ArgumentError(
        f"the mapping given as {option} raised when it was read, a {type(given).__name__}",
        why=error_text(error),
        fix=f"give {option} as a plain dict",
    )


def attribute_of(thing: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of anything; the default where it has none, or its own code raises.

    A `__getattr__` that looks into a table raises `KeyError`, a proxy of nothing whatever it likes.
    """
    try:
        return getattr(thing, name, default)
    except Exception:  # noqa: BLE001  The user's code: what it does not tell is not there.
        return default


def table_of(thing: Any) -> Any:
    """Return the table of an object's attributes; None where it has none, or shows none."""
    if not type(thing).__dictoffset__:
        return None
    try:
        return object.__getattribute__(thing, "__dict__")
    except Exception:  # noqa: BLE001  A property in its place (of a proxy) is the user's code.
        return None


def ask(
    function: Callable[[_Thing], _Given], thing: _Thing, *, option: str, place: str, fix: str
) -> _Given:
    """Return what a function of the user's gives for something.

    Args:
        function: The function.
        thing: What it is asked about.
        option: The option in which it was given.
        place: What it is asked about, in words.
        fix: What it should give.
    Raises:
        ArgumentError: It raises; the message names the option and tells what it raised.
    """
    try:
        return function(thing)
    except Exception as error:
        raise ArgumentError(
            f"the function given as {option} raised for {place}", why=error_text(error), fix=fix
        ) from error
