"""Parsers of the command line: targets, inputs, factory arguments, files, library options."""

import ast
import json
import os
import re
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

import click

from tbscope.errors import ArgumentError
from tbscope.messages import shown
from tbscope.utils.option import Option
from tbscope.utils.validation import is_text

if TYPE_CHECKING:
    from tbscope.saving.save import Form


Command = TypeVar("Command", bound=Callable[..., None])

DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"),
)
"""The dtypes that `--input` takes."""

_INPUT = re.compile(r"(?:([^\W\d]\w*)=)?(scalar|\d{1,18}(?:x\d{1,18})*)(?::(\w+))?", re.ASCII)


class ModelSpec(NamedTuple):
    """The target `package.module:make_model` or `path/to/file.py:make_model`.

    Attributes:
        source: The module's name or the file's path.
        attribute: The name in it, dotted for a name inside a class; empty for a file alone.
    """

    source: str
    attribute: str

    @property
    def is_file(self) -> bool:
        """Whether the source is the path of a file, not a module's name."""
        return self.source.endswith(".py") or "/" in self.source or "\\" in self.source

    def __str__(self) -> str:
        return f"{self.source}:{self.attribute}"


class GraphPath(NamedTuple):
    """The path of a written graph: a file, or a log directory.

    Attributes:
        path: The path, or a URL on another machine.
        tag: The tag of the graph in a log, with or without a step (`large@7`); None for the only
            graph.
    """

    path: str
    tag: str | None = None


class HubConfig(NamedTuple):
    """A model of Hugging Face, made from its config: `hf:NAME`, or the path of a config.

    Attributes:
        name: The name of the model in the local cache, or the path of its config.
        fake: Whether the model has no weights, in place of random ones.
    """

    name: str
    fake: bool = False

    def __str__(self) -> str:
        return f"hf:{self.name}"


Target: TypeAlias = ModelSpec | GraphPath | HubConfig
"""The argument TARGET of a command."""


class InputSpec(NamedTuple):
    """One `--input`: a tensor to make up.

    Attributes:
        name: The keyword argument of forward; None for the next positional argument.
        shape: Sizes per dimension, empty for a scalar.
        dtype: The dtype, one of `DTYPES`.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        """Return its form on the command line: `ids=2x128:int64`."""
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
    """Parse `package.module:make_model`, `path/to/file.py:make_model`, or the path of a graph.

    A colon and a tag may follow the path of a log, and `hf:` precedes the name of a model of
    Hugging Face. `-` is a file on standard input. The path of a file of Python alone has no model.

    >>> parse_target("torch.nn:Linear")
    ModelSpec(source='torch.nn', attribute='Linear')
    >>> parse_target("s3://room/runs/net")
    GraphPath(path='s3://room/runs/net', tag=None)
    >>> parse_target("s3://room/runs/net:large@7")
    GraphPath(path='s3://room/runs/net', tag='large@7')
    >>> parse_target("hf:bert-base-uncased")
    HubConfig(name='bert-base-uncased', fake=False)

    Raises:
        click.BadParameter: The text has another form, and is no existing path.
    """
    if text.startswith("hf:") and text.strip() != "hf:":
        return HubConfig(text.removeprefix("hf:"))
    if text == "-":
        # A source may open a file several times.
        folder = click.get_current_context().with_resource(TemporaryDirectory(prefix="tbscope-"))
        copy = Path(folder) / "standard input"
        copy.write_bytes(sys.stdin.buffer.read())
        return GraphPath(str(copy))
    from tbscope.sources.file_kind import split_tag

    path, tag = split_tag(text)
    if path.endswith(".py") and os.path.isfile(path):
        return ModelSpec(path, "")
    if path.endswith(".json") and _is_config(path):
        return HubConfig(path, fake=True)
    if tag or "://" in path or os.path.exists(path) or ":" not in path:
        return GraphPath(path, tag)
    return _parse_named(
        text, "package.module:make_model or path/to/file.py:make_model, and is no file with a graph"
    )


def _is_config(path: str) -> bool:
    """Whether a file is the config of a model of Hugging Face."""
    try:
        data = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "model_type" in data


def parse_input(text: str) -> InputSpec:
    """Parse `SHAPE`, `SHAPE:dtype`, `NAME=SHAPE` or `NAME=SHAPE:dtype`.

    >>> parse_input("ids=2x128:int64")
    InputSpec(name='ids', shape=(2, 128), dtype='int64')
    >>> parse_input("scalar")
    InputSpec(name=None, shape=(), dtype='float32')

    Raises:
        click.BadParameter: The text has another form, or the dtype is unknown.
    """
    match = _INPUT.fullmatch(text)
    if not match:
        raise _bad(text, "[NAME=]SHAPE[:DTYPE], e.g. 1x3x224x224, scalar or ids=2x128:int64")
    name, sizes, dtype = match[1], match[2], match[3] or "float32"
    if dtype not in DTYPES:
        raise click.BadParameter(f"{shown(dtype)} in {shown(text)} is none of {', '.join(DTYPES)}")
    shape = () if sizes == "scalar" else tuple(map(int, sizes.split("x")))
    return InputSpec(name, shape, dtype)


def parse_maker(text: str) -> ModelSpec:
    """Parse `path/to/file.py:make_inputs` or `package.module:make_inputs`.

    Raises:
        click.BadParameter: The text has another form.
    """
    return _parse_named(text, "path/to/file.py:NAME or package.module:NAME")


def _parse_named(text: str, form: str) -> ModelSpec:
    source, _, attribute = text.rpartition(":")
    if not source or not all(part.isidentifier() for part in attribute.split(".")):
        raise _bad(text, form)
    return ModelSpec(source, attribute)


def parse_factory_argument(text: str) -> tuple[str, object]:
    """Parse `NAME=VALUE`; a value that is no Python literal is a text.

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
    """Parse a path that ends in a form of a graph; `-` or an ending alone is standard output.

    Raises:
        click.BadParameter: The path has another ending, or a terminal cannot show the form.
    """
    # This imports all that draws, which only commands with `-o` need.
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
    """Parse the name of a folder.

    Raises:
        click.BadParameter: The name is empty, or cannot be printed.
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
    options: Mapping[str, Option], *, without: Container[str] = ()
) -> list[Callable[[Command], Command]]:
    """Return decorators that add options of the library to a command, under their Python names.

    A Literal becomes an option with choices, a bool a flag and its opposite
    (`--cards/--no-cards`), a list a repeatable option.

    Args:
        options: The declarations, by name.
        without: The names of the options that the command has in another form.
    """
    return [_click_option(option) for name, option in options.items() if name not in without]


def flag_of(name: str) -> str:
    """Return the flag of an option: `--run-name`."""
    return f"--{name.replace('_', '-')}"


def metavar_of(option: Option) -> str:
    """Return the placeholder for the value of an option: `PATTERN`, `NUMBER`, `NAME`."""
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


def _members(option: Option) -> tuple[object, ...]:
    return get_args(option.type) or (option.type,)
