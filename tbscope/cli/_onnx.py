"""`tbscope export MODEL -o model.onnx`: the one form that is made of the model, and of no graph."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from tbscope.cli._parameters import GraphPath, ModelSpec, OutputFile, parse_output
from tbscope.cli._running import MODES
from tbscope.cli._words import in_command_words
from tbscope.errors import ArgumentError

__all__ = ["KeptModel", "check_onnx_use", "is_onnx", "parse_export_output"]


def is_onnx(output: OutputFile) -> bool:
    """Tell whether an output is an ONNX model."""
    return output.name.lower().endswith(".onnx")


def parse_export_output(text: str) -> OutputFile:
    """Read a path in one of the forms of a graph, or of an ONNX model.

    Raises:
        click.BadParameter: The path has another ending, or a terminal cannot show the form.
    """
    if text.lower() == ".onnx":
        raise click.BadParameter(f"{text!r} is no text, which standard output shows")
    return OutputFile.of(text) if text.lower().endswith(".onnx") else parse_output(text)


def check_onnx_use(
    target: ModelSpec | GraphPath, outputs: Sequence[OutputFile], *, fake: bool
) -> None:
    """Refuse to make an ONNX model of what holds no weights."""
    asked = next(filter(is_onnx, outputs), None)
    if asked is None:
        return
    if isinstance(target, GraphPath):
        raise click.UsageError(
            f"{asked.name} is made of a model with its weights, and {target.path!r} is read."
        )
    if fake:
        raise click.UsageError(f"{asked.name} holds the weights: leave --fake out.")


class KeptModel:
    """Keeps a model that has run, with its inputs, and exports it to ONNX."""

    def __init__(self) -> None:
        self._kept: tuple[Any, Any, dict[str, Any]] | None = None

    def keep(self, model: Any, given: Any, named: dict[str, Any]) -> None:
        """Note a model, the inputs that it was given, by position or as a mapping, and others."""
        if isinstance(given, Mapping):
            given, named = (), {**given, **named}
        self._kept = model, given, named

    def write(self, outputs: Sequence[OutputFile], mode: str | None) -> None:
        """Write an ONNX model, with its modules as functions, to each of the outputs that is one.

        Args:
            outputs: Files of all forms.
            mode: The mode in which the model ran, as `graph_of_target` takes it.
        Raises:
            TbscopeError: It cannot be exported, or a package for that is not there.
        """
        paths = [output.path for output in outputs if is_onnx(output)]
        if not paths:
            return
        assert self._kept is not None, "the model has run"
        model, positional, named = self._kept
        if positional is None:
            raise ArgumentError(
                "an ONNX model is made of a run on inputs that are given",
                why="the model ran on example inputs of its own",
                fix="give each tensor as --input [NAME=]SHAPE[:DTYPE]",
            )
        from tbscope.sources.onnx.export import export_onnx

        with in_command_words(), contextlib.redirect_stdout(sys.stderr):
            for path in paths:
                export_onnx(model, positional, named, path, training=MODES[mode])
