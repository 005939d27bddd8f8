"""The options that the library has too, made of their declarations in `tbscope.options`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

import click

from tbscope.option import Option

__all__ = ["Command", "decorate", "flag_of", "library_options", "metavar_of"]

Command = TypeVar("Command", bound=Callable[..., None])


def decorate(command: Command, parameters: Iterable[Callable[[Command], Command]]) -> Command:
    """Add parameters to a command, so that its help lists them in this order."""
    for add in reversed(list(parameters)):
        command = add(command)
    return command


def library_options(
    options: Mapping[str, Option], *, without: Sequence[str] = ()
) -> list[Callable[[Command], Command]]:
    """Return decorators that add these options to a command, under their names in Python.

    A choice becomes a word, a truth a flag and its opposite (`--cards/--no-cards`), a list
    an option that may be given again.

    Args:
        options: Their declarations.
        without: The names of the options that the command offers in another form.
    """
    return [_click_option(option) for name, option in options.items() if name not in without]


def flag_of(name: str) -> str:
    """Return the flag of an option: `--run-name`."""
    return f"--{name.replace('_', '-')}"


def metavar_of(option: Option) -> str:
    """Return the word for the value of an option in its help: `PATTERN`, `NUMBER`, `NAME`."""
    if get_origin(option.type) is Sequence:
        return "PATTERN"
    return "NUMBER" if int in _members(option) else "NAME"


def _click_option(option: Option) -> Callable[[Command], Command]:
    flag = flag_of(option.name)
    settings: dict[str, Any] = {"default": option.default, "help": option.help}
    if option.unset:
        settings["show_default"] = option.unset
    elif option.default:
        settings["show_default"] = True
    if bool in _members(option):
        flag = f"{flag}/{flag_of(f'no_{option.name}')}"
    elif option.choices:
        settings["type"] = click.Choice(option.choices)
    else:
        settings["metavar"] = metavar_of(option)
        if get_origin(option.type) is Sequence:
            settings |= {"multiple": True, "help": f"{option.help}  [repeatable]"}
        elif int in _members(option):
            settings["type"] = click.IntRange(min=0)
    return click.option(flag, option.name, **settings)


def _members(option: Option) -> tuple[Any, ...]:
    return get_args(option.type) or (option.type,)
