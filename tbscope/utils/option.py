"""The class of a declared option: its default, help, type, and check of values.

The options themselves are declared in `tbscope.options` and `tbscope.run_options`.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin
from typing import get_type_hints as hints_of

from tbscope.utils.validation import check_choice, check_truth

_Taker = TypeVar("_Taker", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        default: The value if the caller passes none.
        help: One line, as the command and the documentation print it.
        unset: The meaning of None, if the option takes None and its meaning is not obvious.
        check: Raises ArgumentError for a value that the option does not take. None if its type
            is enough (a bool, a Literal), or if the code that uses the option checks it.
        name: Its name in Python; the command writes it with `-` for `_`.
        type: Its type.
    """

    default: object
    help: str
    unset: str = ""
    check: Callable[[object], None] | None = None
    name: str = ""
    type: Any = None

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts among its values: all values of a Literal, or those in a union of types."""
        return tuple(_literals(self.type))


def _literals(kind: Any) -> Iterator[str]:
    for part in get_args(kind):
        if isinstance(part, str):
            yield part
        elif not isinstance(part, list):
            yield from _literals(part)


@cache
def declared_in(group: Any) -> dict[str, Option]:
    """Return the options that a `TypedDict` declares, by name."""
    options = {}
    for name, hint in hints_of(group, include_extras=True).items():
        kind, option = get_args(hint)
        options[name] = replace(option, name=name, type=kind)
    return options


def check_values(options: Mapping[str, Option], values: Mapping[str, object]) -> None:
    """Check the values of options; a value whose name is no option is ignored.

    Args:
        options: The options, by name.
        values: The values of some of them, by name.
    Raises:
        ArgumentError: An option does not take its value.
    """
    for name, option in options.items():
        if name not in values:
            continue
        if option.check is not None:
            option.check(values[name])
        elif option.type in (bool, bool | None):
            none = (option.unset or "as it is") if type(None) in get_args(option.type) else ""
            check_truth(name, values[name], none=none)
        elif get_origin(option.type) is Literal:
            check_choice(name, values[name], option.choices)


def take_values(options: Mapping[str, Option], values: dict[str, object]) -> dict[str, Any]:
    """Remove the values of options from a mapping; return them, with defaults for the rest."""
    return {name: values.pop(name, option.default) for name, option in options.items()}


def shows_options(function: _Taker) -> _Taker:
    """Decorator that shows all options with their defaults in the signature, e.g. in `help()`.

    Type checkers and editors read names and types of the options from `**options: Unpack[Group]`,
    where a default has no place; this puts them into the signature that Python shows.

    >>> from typing import Annotated, TypedDict, Unpack
    >>> class Group(TypedDict, total=False):
    ...     cards: Annotated[bool, Option(True, "Draw cards.")]
    >>> @shows_options
    ... def draw(graph: str, **drawing: Unpack[Group]) -> None: ...
    >>> str(inspect.signature(draw).parameters["cards"])
    'cards: bool = True'
    """
    signature = inspect.signature(function)
    *others, options = signature.parameters.values()
    if options.kind is not inspect.Parameter.VAR_KEYWORD:
        raise TypeError(f"{function.__qualname__} does not end in **options")
    (group,) = get_args(options.annotation)
    keyword = inspect.Parameter.KEYWORD_ONLY
    shown = [
        inspect.Parameter(name, keyword, default=option.default, annotation=option.type)
        for name, option in declared_in(group).items()
    ]
    changed: Any = function
    changed.__signature__ = signature.replace(parameters=[*others, *shown])
    return function
