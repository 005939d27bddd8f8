"""Checks of values that many options share: bools, choices, texts, functions of the user's.

A check looks at the type first: `==` or `bool()` of an unknown object would run its own code.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from tbscope.errors import ArgumentError
from tbscope.messages import error_text, shown

InputSize: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Sequence[int]]
"""The shape of an input, the shapes of several, or shapes by the names of forward's parameters."""

Dtypes: TypeAlias = Any
"""A dtype of torch or its name, a list of one for each input, or dtypes by parameter names."""

_Value = TypeVar("_Value")
_Result = TypeVar("_Result")


def is_word(value: object, words: Collection[object]) -> bool:
    """Whether a value is a plain str, and one of some texts."""
    return type(value) is str and value in words


def is_text(value: object) -> bool:
    """Whether a value is a str that can be encoded in UTF-8: one without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        str.encode(value, "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def plain_text(value: _Value) -> "_Value | str":
    """Return a str of any subclass as a plain str; any other value as it is."""
    return str.__str__(value) if isinstance(value, str) else value


def check_truth(name: str, value: object, *, none: str = "") -> None:
    """Check that an option is True or False.

    Args:
        name: The name of the option.
        value: The user's value.
        none: The meaning of None; empty if the option does not take None.
    Raises:
        ArgumentError: The value is another one: a 0, a text, an array.
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
        name: The name of the option.
        value: The user's value.
        choices: The texts, two or more.
    Raises:
        ArgumentError: The value is not among them.
    """
    if is_word(value, choices):
        return
    *others, last = map(repr, choices)
    raise ArgumentError(
        f"{name} cannot be {shown(value)}",
        why=f"{name} is {', '.join(others)} or {last}",
        fix=f"{name}={choices[0]!r}, or leave {name} out",
    )


def names_of(mapping: Mapping[Any, object], *, option: str) -> list[object]:
    """Return the keys of a mapping of the user's.

    Raises:
        ArgumentError: The mapping raised.
    """
    try:
        return list(mapping)
    except Exception as error:
        raise _unreadable(mapping, option, error) from error


def entries_of(mapping: Mapping[Any, object], *, option: str) -> dict[Any, object]:
    """Return the entries of a mapping of the user's as a dict.

    Raises:
        ArgumentError: The mapping raised.
    """
    try:
        return {key: mapping[key] for key in mapping}
    except Exception as error:
        raise _unreadable(mapping, option, error) from error


def _unreadable(mapping: object, option: str, error: Exception) -> ArgumentError:
    return ArgumentError(
        f"the mapping given as {option} raised when it was read, a {type(mapping).__name__}",
        why=error_text(error),
        fix=f"give {option} as a plain dict",
    )


def attribute_of(obj: object, name: str, default: object = None) -> Any:
    """Return an attribute of any object, or the default if it is missing or its code raises.

    A `__getattr__` that looks into a dict raises `KeyError`, an unbound proxy any error.
    """
    try:
        return getattr(obj, name, default)
    except Exception:  # noqa: BLE001  The user's code raised: the attribute is missing.
        return default


def table_of(obj: object) -> Any:
    """Return the `__dict__` of an object past its `__getattribute__`, or None if it has none."""
    if not type(obj).__dictoffset__:
        return None
    try:
        return object.__getattribute__(obj, "__dict__")
    except Exception:  # noqa: BLE001  `__dict__` may be a property (of a proxy): the user's code.
        return None


def ask(
    function: Callable[[_Value], _Result], argument: _Value, *, option: str, place: str, fix: str
) -> _Result:
    """Return the result of a function of the user's.

    Args:
        function: The function.
        argument: Its argument.
        option: The name of the option whose value it is.
        place: The argument in words, for the error.
        fix: The result that it should return, for the error.
    Raises:
        ArgumentError: The function raised; the message names the option and the error.
    """
    try:
        return function(argument)
    except Exception as error:
        raise ArgumentError(
            f"the function given as {option} raised for {place}", why=error_text(error), fix=fix
        ) from error
