"""What an option is: its default, its help, its type, and what tells a wrong value.

It knows none of them: these are declared in `options`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args
from typing import get_type_hints as hints_of

from tbscope.checks import check_truth

__all__ = ["Option", "check_values", "declared_in"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        default: What it is where nothing is asked for.
        help: One line, as the command and the documentation print it.
        unset: What None stands for, where that is the default and is not plain.
        check: Raises ArgumentError unless it is given a value of the option; None where its
            type tells (a truth), and where what takes the option finds out by itself.
        name: Its name in Python; the command writes it with `-` for `_`.
        type: Its type.
    """

    default: Any
    help: str
    unset: str = ""
    check: Callable[[Any], None] | None = None
    name: str = ""
    type: Any = None

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that it may be, where these are a closed set or a part of its type."""
        return tuple(_literals(self.type))


def _literals(kind: Any) -> Iterator[str]:
    for part in get_args(kind):
        if isinstance(part, str):
            yield part
        elif not isinstance(part, list):
            yield from _literals(part)


def declared_in(group: Any) -> dict[str, Option]:
    """Return the options that a `TypedDict` declares, by name."""
    found = {}
    for name, hint in hints_of(group, include_extras=True).items():
        kind, option = get_args(hint)
        found[name] = replace(option, name=name, type=kind)
    return found


def check_values(options: Mapping[str, Option], values: Mapping[str, object]) -> None:
    """Check the values of options; what is no value of one of them is left alone.

    Args:
        options: The options, by name.
        values: The values of some of them.
    Raises:
        ArgumentError: One is no value of its option.
    """
    for name, option in options.items():
        if name not in values:
            continue
        if option.check is not None:
            option.check(values[name])
        elif option.type in (bool, bool | None):
            none = (option.unset or "as it is") if type(None) in get_args(option.type) else ""
            check_truth(name, values[name], none=none)
