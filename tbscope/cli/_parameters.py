"""What the command line's words mean: targets, inputs, factory arguments, output files."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import click

__all__ = [
    "DTYPES",
    "FactoryArgument",
    "FactoryArgumentType",
    "InputSpec",
    "InputType",
    "OutputFile",
    "OutputType",
    "Target",
    "TargetType",
]

DTYPES = {
    **dict.fromkeys(
        ("float32", "float64", "float16", "bfloat16", "complex64", "complex128"), "normal"
    ),
    **dict.fromkeys(
        ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"), "whole"
    ),
    "bool": "whole",
}
"""The element types that `--input` takes, and the random numbers that fill each."""

_INPUT = re.compile(r"(?:([^\W\d]\w*)=)?(scalar|\d+(?:x\d+)*)(?::(\w+))?", re.ASCII)

Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class Target:
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


@dataclass(frozen=True, slots=True)
class FactoryArgument:
    """One `--arg`: a keyword argument of the factory."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One `-o`: a file for the GraphDef, or standard output.

    Attributes:
        path: The file; None for standard output.
        is_text: Whether it is written as text (pbtxt) and not in the binary form.
    """

    path: Path | None
    is_text: bool


class _TextType(click.ParamType, Generic[Parsed]):
    """A parameter that is parsed from one word."""

    expected = ""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Parsed:
        """Give the parsed value, or end in a usage error that names the form expected."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        parsed = self.parse(value)
        if parsed is None:
            self.fail(f"{value!r} has not the form {self.expected}", param, ctx)
        return parsed

    def parse(self, text: str) -> Parsed | None:
        """Give what the text means, None where it has not the form expected."""
        raise NotImplementedError


class TargetType(_TextType[Target]):
    """Parses `package.module:make_model` and `path/to/file.py:make_model`."""

    name = "target"
    expected = "package.module:make_model or path/to/file.py:make_model"

    def parse(self, text: str) -> Target | None:
        """Split at the last colon.

        >>> TargetType().parse("torch.nn:Linear")
        Target(place='torch.nn', attribute='Linear')
        """
        place, _, attribute = text.rpartition(":")
        if not place or not all(part.isidentifier() for part in attribute.split(".")):
            return None
        return Target(place, attribute)


class InputType(_TextType[InputSpec]):
    """Parses `SHAPE`, `SHAPE:dtype`, `NAME=SHAPE` and `NAME=SHAPE:dtype`."""

    name = "input"
    expected = (
        "SHAPE, SHAPE:dtype, NAME=SHAPE or NAME=SHAPE:dtype, e.g. 1x3x224x224 or ids=2x128:int64; "
        f"a SHAPE is sizes joined by x, or scalar; a dtype is one of {', '.join(DTYPES)}"
    )

    def parse(self, text: str) -> InputSpec | None:
        """Give one tensor's description.

        >>> InputType().parse("ids=2x128:int64")
        InputSpec(name='ids', shape=(2, 128), dtype='int64')
        >>> InputType().parse("scalar")
        InputSpec(name=None, shape=(), dtype='float32')
        """
        found = _INPUT.fullmatch(text)
        if not found or (found[3] or "float32") not in DTYPES:
            return None
        shape = () if found[2] == "scalar" else tuple(map(int, found[2].split("x")))
        return InputSpec(found[1], shape, found[3] or "float32")


class FactoryArgumentType(_TextType[FactoryArgument]):
    """Parses `NAME=VALUE`; a value that is no Python literal is a text."""

    name = "argument"
    expected = "NAME=VALUE, e.g. depth=50"

    def parse(self, text: str) -> FactoryArgument | None:
        """Give the name and the value.

        >>> FactoryArgumentType().parse("depth=50"), FactoryArgumentType().parse("size=base")
        (FactoryArgument(name='depth', value=50), FactoryArgument(name='size', value='base'))
        """
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            return None
        try:
            return FactoryArgument(name, ast.literal_eval(value))
        except (ValueError, SyntaxError):
            return FactoryArgument(name, value)


class OutputType(_TextType[OutputFile]):
    """Parses a path that ends in `.pbtxt` (text) or `.pb` (binary), or `-`."""

    name = "output"
    expected = "FILE.pbtxt (text), FILE.pb (binary) or - (text on standard output)"

    def parse(self, text: str) -> OutputFile | None:
        """Give the path and the form that its ending asks for."""
        if text == "-":
            return OutputFile(None, is_text=True)
        path = Path(text)
        if path.suffix not in (".pbtxt", ".pb"):
            return None
        return OutputFile(path, is_text=path.suffix == ".pbtxt")
