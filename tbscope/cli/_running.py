"""Makes a graph of a TARGET: the options that commands share which take one, and the run itself.

A target is a model, which is run, or a graph that was written before, which is read.
"""

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tbscope.cli._options import Command, decorate, flag_of, library_options
from tbscope.cli._parameters import (
    FactoryArgument,
    GraphPath,
    InputSpec,
    ModelSpec,
    parse_factory_argument,
    parse_input,
    parse_target,
)
from tbscope.cli._words import in_command_words
from tbscope.errors import TraceError
from tbscope.options import RUNNING
from tbscope.words import error_text

if TYPE_CHECKING:
    from tbscope.ir.graph import Graph

__all__ = [
    "IN_OTHER_WORDS",
    "graph_of_target",
    "graphs_of_targets",
    "refuse_run_options",
    "takes_a_target",
    "takes_targets",
]

IN_OTHER_WORDS = {
    **dict.fromkeys(("kwargs", "input_size", "dtypes"), ("--input",)),
    "training": ("--eval", "--training", "--as-is"),
}
"""The options of a run that the command offers in a form of its own."""

_MODES = {None: False, "eval": False, "training": True, "as-is": None}
_MOST_NOTES = 10


def takes_targets(*names: str) -> Callable[[Command], Command]:
    """Add arguments that are targets, and the options of a run: inputs, factory, mode.

    Args:
        names: The names of the arguments, as `graph_of_target` takes them one by one.
    """
    return functools.partial(decorate, parameters=[*map(_argument, names), *_run_options()])


def takes_a_target(command: Command) -> Command:
    """Add the argument TARGET, and the options of a run."""
    return takes_targets("target")(command)


def _argument(name: str) -> Callable[[Command], Command]:
    return click.argument(name, type=parse_target)


def _run_options() -> list[Callable[[Command], Command]]:
    return [
        click.option(
            "-i",
            "--input",
            "inputs",
            type=parse_input,
            multiple=True,
            metavar="[NAME=]SHAPE[:DTYPE]",
            help="A tensor for the model: 1x3x224x224, ids=2x128:int64 for a keyword "
            "argument, scalar for no dimension. Floats are normal, whole numbers 0 or 1. "
            "Without any, the model's own example inputs are taken, where it has some.  "
            "[repeatable]",
        ),
        click.option(
            "-a",
            "--arg",
            "arguments",
            type=parse_factory_argument,
            multiple=True,
            metavar="NAME=VALUE",
            help="Argument of the function or class that makes the model: a Python literal, "
            "or else a text.  [repeatable]",
        ),
        click.option(
            "--seed",
            type=click.IntRange(-(2**63), 2**64 - 1),
            default=0,
            show_default=True,
            help="Seed of the inputs and of the model's random weights.",
        ),
        click.option(
            "--eval", "mode", flag_value="eval", help="Run in evaluation mode, the default."
        ),
        click.option("--training", "mode", flag_value="training", help="Run in training mode."),
        click.option(
            "--as-is",
            "mode",
            flag_value="as-is",
            help="Run in the mode that the model is in when it is made.",
        ),
        *library_options(RUNNING, without=tuple(IN_OTHER_WORDS)),
    ]


def graph_of_target(
    target: ModelSpec | GraphPath,
    *,
    inputs: tuple[InputSpec, ...],
    arguments: tuple[FactoryArgument, ...],
    seed: int,
    mode: str | None,
    **how: Any,
) -> "Graph":
    """Return the graph of a target, and tell on standard error what to note.

    A model and its inputs are made, and it is run once.

    Args:
        target: Where the model is; or its graph, which is read instead.
        inputs: The tensors to make up.
        arguments: What its factory is given.
        seed: Of the weights and the inputs.
        mode: "eval", "training" or "as-is"; None for "eval".
        how: Further options of `trace`.
    Raises:
        TbscopeError: There is no such model, or it raised; or the file holds no graph.
    """
    if isinstance(target, GraphPath):
        refuse_run_options(target, {"inputs": inputs, "arguments": arguments, "mode": mode, **how})
        graph = _read_graph(target)
        _tell_notes(graph)
        return graph
    named_twice = _first_repeated([spec.name for spec in inputs if spec.name])
    if named_twice:
        raise click.UsageError(f"--input gives {named_twice!r} twice.")
    import torch

    from tbscope.cli._inputs import make_inputs
    from tbscope.cli._target import import_path, load_model
    from tbscope.sources.eager.trace import trace

    torch.manual_seed(seed)
    # What the model prints is no part of the command's own output.
    with import_path(target), contextlib.redirect_stdout(sys.stderr):
        model = load_model(target, {argument.name: argument.value for argument in arguments})
        with in_command_words(inputs), _exits_told(target):
            positional, named = make_inputs(inputs, seed=seed, fake=bool(how.get("fake")))
            graph = trace(model, positional, kwargs=named or None, training=_MODES[mode], **how)
    _tell_notes(graph)
    return graph


def graphs_of_targets(targets: Sequence[ModelSpec | GraphPath], **run: Any) -> "list[Graph]":
    """Return the graphs of several targets: models are run alike, with the same options.

    Args:
        targets: Where they are.
        run: The options of a run, as for `graph_of_target`.
    """
    read = run
    if any(isinstance(target, ModelSpec) for target in targets):
        # They concern the other one.
        read = {"inputs": (), "arguments": (), "seed": 0, "mode": None}
    return [
        graph_of_target(target, **(run if isinstance(target, ModelSpec) else read))
        for target in targets
    ]


def refuse_run_options(target: GraphPath, given: Mapping[str, Any]) -> None:
    """Refuse options that tell how a model runs: what is read has run.

    Args:
        target: What is read.
        given: The options, under the names of their parameters.
    Raises:
        click.UsageError: One was given.
    """
    flags = {"inputs": "input", "arguments": "arg", "mode": given.get("mode")}
    for name, value in given.items():
        if value and name not in ("kernels", "seed"):
            flag = flag_of(flags.get(name) or name)
            raise click.UsageError(f"{flag} is for a model that runs, and {target.path!r} is read.")


def _read_graph(target: GraphPath) -> "Graph":
    from tbscope.cli._logged import logged_graph
    from tbscope.sources.table import load

    with in_command_words(), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        tag = target.tag
        graph = load(target.path) if tag is None else logged_graph(target.path, tag)
    for one in warned:
        click.echo(f"note: {one.message}", err=True)
    return graph


@contextlib.contextmanager
def _exits_told(target: ModelSpec) -> Iterator[None]:
    """Turn `sys.exit()` in a model into an error: it is no result of the command."""
    try:
        yield
    except SystemExit as error:
        raise TraceError(
            f"{target.attribute!r} in {target.place!r} ended the process while it ran",
            why=error_text(error),
            fix="take sys.exit() out of the model; add --debug to see where",
        ) from error


def _tell_notes(graph: "Graph") -> None:
    # What FLOPs leave out stands below the table of them, and concerns nobody else.
    told = [note for note in graph.notes if note.topic != "flops"]
    notes = list(dict.fromkeys(map(str, told)))
    for note in notes[:_MOST_NOTES]:
        click.echo(f"note: {note}", err=True)
    if len(notes) > _MOST_NOTES:
        click.echo(f"note: and {len(notes) - _MOST_NOTES} more, in graph.notes", err=True)


def _first_repeated(names: list[str]) -> str | None:
    return next((name for index, name in enumerate(names) if name in names[:index]), None)
