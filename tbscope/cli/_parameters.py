"""What the command line's words mean: targets, inputs, factory arguments, output files."""

import ast
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click

from tbscope.checks import is_text
from tbscope.errors import ArgumentError
from tbscope.words import shown

__all__ = [
    "DTYPES",
    "GraphPath",
    "HubConfig",
    "InputSpec",
    "OutputFile",
    "ModelSpec",
    "Target",
    "parse_factory_argument",
    "parse_folder",
    "parse_input",
    "parse_loss",
    "parse_maker",
    "parse_output",
    "parse_target",
]

DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"),
)
"""The element types that `--input` takes."""

_INPUT = re.compile(r"(?:([^\W\d]\w*)=)?(scalar|\d{1,18}(?:x\d{1,18})*)(?::(\w+))?", re.ASCII)

_FUNCTION = "path/to/file.py:{0} or package.module:{0}"

# A colon before digits and a slash begins the port of a machine.
_REMOTE = re.compile(r"(\w[\w+.-]*://(?:[^:]|:[0-9]+(?=/))*)(?::(.+))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ModelSpec:
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


@dataclass(frozen=True, slots=True)
class GraphPath:
    """Where a graph is that was written before: a file, or a log directory.

    Attributes:
        path: The path, which may be one on another machine.
        tag: Which graph of a log is meant: its tag, maybe with a step (`large@7`); None for the
            only one.
    """

    path: str
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class HubConfig:
    """A model of Hugging Face's, to be made of its config with random weights: `hf:NAME`.

    Attributes:
        name: The name of the model in the local cache, or the path of its config.
    """

    name: str

    def __str__(self) -> str:
        return f"hf:{self.name}"


Target: TypeAlias = ModelSpec | GraphPath | HubConfig
"""What a command is given as TARGET."""


@dataclass(frozen=True, slots=True)
class InputSpec:
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


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One `-o`: a file for the graph, or standard output.

    Attributes:
        path: The file; None for standard output.
        name: What tells the form by its end.
    """

    path: Path | None
    name: str


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
    from tbscope.sources.files import file_kind

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
    return _parse_named(text, _FUNCTION.format("make_inputs"))


def parse_loss(text: str) -> ModelSpec:
    """Read `path/to/file.py:make_loss` or `package.module:make_loss`.

    Raises:
        click.BadParameter: The text has another form.
    """
    return _parse_named(text, _FUNCTION.format("make_loss"))


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

    >>> parse_output("-"), parse_output(".mmd")
    (OutputFile(path=None, name='.pbtxt'), OutputFile(path=None, name='.mmd'))

    Raises:
        click.BadParameter: The path has another ending, or a terminal cannot show the form.
    """
    # As heavy as drawing, and only needed where something is drawn.
    from tbscope.saving.forms import form_of

    if text == "-":
        return OutputFile(None, ".pbtxt")
    try:
        form = form_of(text)
    except ArgumentError as error:
        raise click.BadParameter(f"{error.what}: {error.why}") from error
    if text != form.suffix:
        return OutputFile(Path(text), text)
    if not form.is_text:
        raise click.BadParameter(f"{shown(text)} is no text, which standard output shows")
    return OutputFile(None, text)


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
