"""What the command line's words mean: targets, inputs, factory arguments, files, options."""

import ast
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

import click

from tbscope.errors import ArgumentError
from tbscope.messages import shown
from tbscope.utils.option import Option
from tbscope.utils.validation import is_text

if TYPE_CHECKING:
    from tbscope.saving.save import Form

__all__ = [
    "DTYPES",
    "Command",
    "GraphPath",
    "HubConfig",
    "InputSpec",
    "ModelSpec",
    "OutputFile",
    "Target",
    "flag_of",
    "library_options",
    "metavar_of",
    "parse_factory_argument",
    "parse_folder",
    "parse_input",
    "parse_maker",
    "parse_output",
    "parse_target",
    "takes",
]

Command = TypeVar("Command", bound=Callable[..., None])

DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"),
)
"""The element types that `--input` takes."""

_INPUT = re.compile(r"(?:([^\W\d]\w*)=)?(scalar|\d{1,18}(?:x\d{1,18})*)(?::(\w+))?", re.ASCII)

# A colon before digits and a slash begins the port of a machine.
_REMOTE = re.compile(r"(\w[\w+.-]*://(?:[^:]|:[0-9]+(?=/))*)(?::(.+))?", re.DOTALL)


class ModelSpec(NamedTuple):
    """Where the model is: `package.module:make_model` or `path/to/file.py:make_model`.

    Attributes:
        place: The module's name or the file's path.
        attribute: The name in it, dotted for one inside a class.
    """

    place: str
    attribute: str

    @property
    def is_file(self) -> bool:
        """Whether the place is a file and no module's name."""
        return self.place.endswith(".py") or "/" in self.place or "\\" in self.place

    def __str__(self) -> str:
        return f"{self.place}:{self.attribute}"


class GraphPath(NamedTuple):
    """Where a graph is that was written before: a file, or a log directory.

    Attributes:
        path: The path, which may be one on another machine.
        tag: Which graph of a log is meant: its tag, maybe with a step (`large@7`); None for the
            only one.
    """

    path: str
    tag: str | None = None


class HubConfig(NamedTuple):
    """A model of Hugging Face's, to be made of its config with random weights: `hf:NAME`.

    Attributes:
        name: The name of the model in the local cache, or the path of its config.
    """

    name: str

    def __str__(self) -> str:
        return f"hf:{self.name}"


Target: TypeAlias = ModelSpec | GraphPath | HubConfig
"""What a command is given as TARGET."""


class InputSpec(NamedTuple):
    """One `--input`: a tensor to make up.

    Attributes:
        name: The keyword argument of forward; None for the next positional one.
        shape: Sizes per dimension, none for a scalar.
        dtype: The element type, one of `DTYPES`.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        """Print it as one writes it: `ids=2x128:int64`."""
        sizes = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.name}={sizes}:{self.dtype}" if self.name else f"{sizes}:{self.dtype}"


class OutputFile(NamedTuple):
    """One `-o`: a file for the graph, or standard output.

    Attributes:
        path: The file; None for standard output.
        form: The form of the graph in it.
    """

    path: Path | None
    form: "Form"


def parse_target(text: str) -> Target:
    """Read `package.module:make_model`, `path/to/file.py:make_model`, or the path of a graph.

    The path of a log may be followed by a colon and a tag, and `hf:` goes before the name of a
    model of Hugging Face's.

    >>> parse_target("torch.nn:Linear")
    ModelSpec(place='torch.nn', attribute='Linear')
    >>> parse_target("s3://room/runs/net")
    GraphPath(path='s3://room/runs/net', tag=None)
    >>> parse_target("s3://room/runs/net:large@7")
    GraphPath(path='s3://room/runs/net', tag='large@7')
    >>> parse_target("hf:bert-base-uncased")
    HubConfig(name='bert-base-uncased')

    Raises:
        click.BadParameter: The text has another form, and nothing is there.
    """
    if text.startswith("hf:") and text.strip() != "hf:":
        return HubConfig(text.removeprefix("hf:"))
    found = _REMOTE.fullmatch(text)
    if found:
        return GraphPath(*found.groups())
    if os.path.exists(text) and not text.endswith(".py"):
        return GraphPath(text)
    for colon in re.finditer(":", text):
        path, tag = text[: colon.start()], text[colon.end() :]
        if tag and _holds_tags(path):
            return GraphPath(path, tag)
    return _parse_named(
        text, "package.module:make_model or path/to/file.py:make_model, and is no file with a graph"
    )


def _holds_tags(path: str) -> bool:
    """Tell whether a path may be that of a log, and not the name of a module."""
    if os.path.isdir(path):
        return not os.path.exists(os.path.join(path, "__init__.py"))
    if not os.path.exists(path):
        return False
    from tbscope.sources.file_kind import file_kind

    return file_kind(path) == "events"


def parse_input(text: str) -> InputSpec:
    """Read `SHAPE`, `SHAPE:dtype`, `NAME=SHAPE` or `NAME=SHAPE:dtype`.

    >>> parse_input("ids=2x128:int64")
    InputSpec(name='ids', shape=(2, 128), dtype='int64')
    >>> parse_input("scalar")
    InputSpec(name=None, shape=(), dtype='float32')

    Raises:
        click.BadParameter: The text has another form, or names an unknown element type.
    """
    found = _INPUT.fullmatch(text)
    if not found:
        raise _bad(text, "[NAME=]SHAPE[:DTYPE], e.g. 1x3x224x224, scalar or ids=2x128:int64")
    name, sizes, dtype = found.groups(default="")
    if (dtype or "float32") not in DTYPES:
        raise click.BadParameter(f"{shown(dtype)} in {shown(text)} is none of {', '.join(DTYPES)}")
    shape = () if sizes == "scalar" else tuple(map(int, sizes.split("x")))
    return InputSpec(name or None, shape, dtype or "float32")


def parse_maker(text: str) -> ModelSpec:
    """Read `path/to/file.py:make_inputs` or `package.module:make_inputs`.

    Raises:
        click.BadParameter: The text has another form.
    """
    return _parse_named(text, "path/to/file.py:NAME or package.module:NAME")


def _parse_named(text: str, form: str) -> ModelSpec:
    place, _, attribute = text.rpartition(":")
    if not place or not all(part.isidentifier() for part in attribute.split(".")):
        raise _bad(text, form)
    return ModelSpec(place, attribute)


def parse_factory_argument(text: str) -> tuple[str, Any]:
    """Read `NAME=VALUE`; a value that is no Python literal is a text.

    >>> parse_factory_argument("depth=50"), parse_factory_argument("size=base")
    (('depth', 50), ('size', 'base'))

    Raises:
        click.BadParameter: The text has another form.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise _bad(text, "NAME=VALUE, e.g. depth=50")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return name, value


def parse_output(text: str) -> OutputFile:
    """Read a path that ends in one of the forms of a graph; `-` or such an end alone.

    Raises:
        click.BadParameter: The path has another ending, or a terminal cannot show the form.
    """
    # As heavy as drawing, and only needed where something is drawn.
    from tbscope.saving.save import form_of

    text = ".pbtxt" if text == "-" else text
    try:
        form = form_of(text)
    except ArgumentError as error:
        raise click.BadParameter(f"{error.what}: {error.why}") from error
    if text == form.suffix and not form.is_text:
        raise click.BadParameter(f"{shown(text)} is no text, which standard output shows")
    return OutputFile(None if text == form.suffix else Path(text), form)


def parse_folder(text: str) -> str:
    """Read the name of a folder.

    Raises:
        click.BadParameter: It is empty, or no text that can be printed.
    """
    if not text.strip() or not is_text(text):
        raise click.BadParameter(f"{shown(text)} is no name of a folder, e.g. runs/net")
    return text


def _bad(text: str, form: str) -> click.BadParameter:
    return click.BadParameter(f"{shown(text)} has not the form {form}")


# -- options of the library --------------------------------------------------------------------


def takes(*parameters: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds parameters to a command; its help lists them in this order."""

    def add_all(command: Command) -> Command:
        for add in reversed(parameters):
            command = add(command)
        return command

    return add_all


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
    flag, members = flag_of(option.name), _members(option)
    settings: dict[str, Any] = {"default": option.default, "help": option.help}
    if option.unset:
        settings["show_default"] = option.unset
    elif option.default:
        settings["show_default"] = True
    if bool in members:
        flag = f"{flag}/{flag_of(f'no_{option.name}')}"
    elif option.choices:
        settings["type"] = click.Choice(option.choices)
    else:
        settings["metavar"] = metavar_of(option)
        if get_origin(option.type) is Sequence:
            settings |= {"multiple": True, "help": f"{option.help}  [repeatable]"}
        elif int in members:
            settings["type"] = click.IntRange(min=0)
    return click.option(flag, option.name, **settings)


def _members(option: Option) -> tuple[Any, ...]:
    return get_args(option.type) or (option.type,)
