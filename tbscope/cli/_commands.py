"""The commands: `export` writes a model's graph, `show` prints it, `demo` shows one."""

import contextlib
import functools
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tbscope.cli._files import check_folder, explained, write_whole
from tbscope.cli._parameters import (
    FactoryArgument,
    InputSpec,
    OutputFile,
    Target,
    parse_factory_argument,
    parse_input,
    parse_output,
    parse_target,
)
from tbscope.errors import InputError, TbscopeError

if TYPE_CHECKING:
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    from tbscope.ir.graph import Graph

__all__ = ["main"]

_MODES = {None: False, "eval": False, "training": True, "as-is": None}

_MOST_NOTES = 10

Command = TypeVar("Command", bound=Callable[..., None])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tbscope", message="%(prog)s %(version)s")
def main() -> None:
    """Draw PyTorch models in TensorBoard's Graphs dashboard.

    Exits with 0 where all went well, with 1 and one message where it did not, and with 2
    where the command line cannot be read.
    """


def _takes_a_model(command: Command) -> Command:
    """Add what every command takes that runs a model: target, inputs, mode, --traceback."""
    for decorate in (
        click.option("--traceback", is_flag=True, help="On an error, show where it was raised."),
        click.option(
            "--grad/--no-grad", default=False, help="Keep gradients while it runs; default: don't."
        ),
        click.option(
            "--partial",
            is_flag=True,
            help="If the model raises, take the graph up to there, with a note, and go on.",
        ),
        click.option(
            "--fake",
            is_flag=True,
            help="Compute nothing but shapes: no memory is taken for activations.",
        ),
        click.option(
            "--profile",
            is_flag=True,
            help="Measure the time and the memory of each operation, in further runs.",
        ),
        click.option(
            "--as-is",
            "mode",
            flag_value="as-is",
            help="Run in the mode that the model is in when it is made.",
        ),
        click.option("--training", "mode", flag_value="training", help="Run in training mode."),
        click.option(
            "--eval", "mode", flag_value="eval", help="Run in evaluation mode, the default."
        ),
        click.option(
            "--seed",
            default=0,
            show_default=True,
            help="Seed of the inputs and of the model's random weights.",
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
            "-i",
            "--input",
            "inputs",
            type=parse_input,
            multiple=True,
            metavar="[NAME=]SHAPE[:DTYPE]",
            help="A tensor for the model: 1x3x224x224, ids=2x128:int64 for a keyword argument, "
            "scalar for no dimension. Floats are normal, whole numbers 0 or 1. Without any, "
            "the model's own example inputs are taken, where it has some.  [repeatable]",
        ),
        click.argument("target", type=parse_target),
    ):
        command = decorate(command)
    return command


@main.command()
@_takes_a_model
@click.option(
    "--logdir", metavar="FOLDER", help="Write an event file for TensorBoard into this folder."
)
@click.option(
    "-o",
    "--output",
    "outputs",
    type=parse_output,
    multiple=True,
    metavar="FILE",
    help="Write the GraphDef: .pbtxt as text, .pb in binary form, - as text on standard output.  "
    "[repeatable]",
)
@click.option(
    "--style",
    type=click.Choice(["tf", "torch"]),
    default="tf",
    show_default=True,
    help="Names like layer1/0 (tf) or Net/Sequential[layer1]/Linear[0] (torch).",
)
@click.option(
    "--root/--no-root",
    default=None,
    help="Draw a box around everything, or none.  [default: only in style torch]",
)
@click.option(
    "--level",
    type=click.Choice(["module", "op", "aten"]),
    default="op",
    show_default=True,
    help="Draw modules, operations as they are written, or the kernels inside of them.",
)
@click.option(
    "--leaves",
    type=click.Choice(["node", "box"]),
    default="node",
    show_default=True,
    help="Draw a module that runs one operation as a node or as a box.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="PATTERN",
    help="Draw views, casts and copies of this name or in this module.  [repeatable]",
)
@click.option(
    "--hide",
    multiple=True,
    metavar="PATTERN",
    help="Leave out operations of this name, or this module.  [repeatable]",
)
@click.option(
    "--dead",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="Draw or drop operations that no output depends on.",
)
@click.option(
    "--color-by",
    type=click.Choice(["class", "dtype", "trainable", "device", "source file", "rank"]),
    help="What the page colours nodes by under 'XLA cluster'.",
)
def export(
    *,
    logdir: str | None,
    outputs: tuple[OutputFile, ...],
    traceback: bool,
    **options: Any,
) -> None:
    """Write the graph of a model: for TensorBoard (--logdir), or as a GraphDef (-o).

    TARGET is package.module:NAME or path/to/file.py:NAME, where NAME is a model, or a function
    or class that makes one.

    \b
    tbscope export torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3 --logdir runs/linear
    tbscope export nets.py:make_model -i ids=2x128:int64 -o graph.pbtxt
    """  # noqa: D301
    if logdir is None and not outputs:
        raise click.UsageError("Nothing to write: give --logdir FOLDER, -o FILE, or both.")
    with _errors_as_messages(traceback=traceback):
        for output in outputs:
            if output.path is not None:
                check_folder(output.path)
        from tbscope.pipeline import Drawing, to_graph_def

        drawing: Any = {
            name: options.pop(name) for name in Drawing.__annotations__.keys() & options.keys()
        }
        graph = _run(**options, kernels=drawing["level"] == "aten")
        graph_def = to_graph_def(graph, **drawing)
        _write_outputs(graph_def, outputs)
        # Where the graph itself goes to standard output, nothing else does.
        to_stderr = any(output.path is None for output in outputs)
        if logdir is not None:
            _write_log(graph, logdir, drawing)
            click.echo(_opening_line(logdir), err=to_stderr)


@main.command()
@_takes_a_model
@click.option("--sources", is_flag=True, help="End each line in its place in the model's code.")
@click.option("--parameters", is_flag=True, help="Give parameters and buffers lines of their own.")
@click.option(
    "--summary",
    is_flag=True,
    help="Print the table of its modules instead: shapes, parameters, FLOPs, bytes.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --summary: the levels of modules that have lines of their own.  [default: all]",
)
def show(
    *,
    sources: bool,
    parameters: bool,
    summary: bool,
    depth: int | None,
    traceback: bool,
    **run: Any,
) -> None:
    """Print the graph of a model, one operation a line, or the table of its modules.

    TARGET is package.module:NAME or path/to/file.py:NAME, where NAME is a model, or a function
    or class that makes one.

    \b
    tbscope show torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3
    tbscope show nets.py:make_model -i 2x3 --summary --depth 2
    """  # noqa: D301
    if depth is not None and not summary:
        raise click.UsageError("--depth is for the table: give --summary, too.")
    if summary and (sources or parameters):
        raise click.UsageError("--sources and --parameters are for lines, not for --summary.")
    with _errors_as_messages(traceback=traceback):
        graph = _run(**run)
        if summary:
            graph.summary(depth=depth).show()
            return
        from tbscope.ir.text import graph_to_text

        click.echo(graph_to_text(graph, sources=sources, parameters=parameters))


@main.command()
@click.option(
    "--logdir",
    default="runs/demo",
    show_default=True,
    metavar="FOLDER",
    help="Folder for the event file.",
)
def demo(*, logdir: str) -> None:
    """Write the graph of a small captioning model, and print the line that opens it.

    Under further tags the page colours it by times, memory, FLOPs and parameters.
    """
    with _errors_as_messages(traceback=False):
        from tbscope.cli._demo_model import make_inputs, make_model
        from tbscope.sources.eager.trace import trace

        graph = trace(make_model(), make_inputs(), profile=True)
        _write_log(graph, logdir, {}, overlays=("flops", "parameters"))
        click.echo(_opening_line(logdir))


@contextlib.contextmanager
def _errors_as_messages(*, traceback: bool) -> Iterator[None]:
    """End with exit code 1 and one message; Python's traceback only where it is asked for."""
    try:
        yield
    except TbscopeError as error:
        if traceback:
            raise
        raise click.ClickException(str(error)) from error


def _run(
    *,
    target: Target,
    inputs: tuple[InputSpec, ...],
    arguments: tuple[FactoryArgument, ...],
    seed: int,
    mode: str | None,
    **how: bool,
) -> "Graph":
    """Make the model and its inputs, run it once, and tell on standard error what to note."""
    named_twice = _first_repeated([spec.name for spec in inputs if spec.name])
    if named_twice:
        raise click.UsageError(f"--input gives {named_twice!r} twice.")
    import torch

    from tbscope.cli._inputs import make_inputs
    from tbscope.cli._target import import_path, load_model
    from tbscope.sources.eager.trace import trace

    torch.manual_seed(seed)
    # What the model prints is no part of what the command gives.
    with import_path(target), contextlib.redirect_stdout(sys.stderr):
        model = load_model(target, {argument.name: argument.value for argument in arguments})
        positional, named = make_inputs(inputs, seed=seed)
        try:
            graph = trace(model, positional, kwargs=named or None, training=_MODES[mode], **how)
        except InputError as error:
            if "input_to_model" not in error.fix and "kwargs" not in error.fix:
                raise
            raise InputError(
                error.what, why=error.why, fix="give each tensor as --input [NAME=]SHAPE[:DTYPE]"
            ) from error
    _tell_notes(graph)
    return graph


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


def _write_outputs(graph_def: "GraphDef", outputs: tuple[OutputFile, ...]) -> None:
    from google.protobuf import text_format

    as_text = functools.cache(lambda: text_format.MessageToString(graph_def))
    for output in outputs:
        if output.path is None:
            click.echo(as_text(), nl=False)
        elif output.is_text:
            write_whole(output.path, as_text().encode())
        else:
            write_whole(output.path, graph_def.SerializeToString(deterministic=True))


def _write_log(graph: "Graph", logdir: str, drawing: Any, *, overlays: Iterable[str] = ()) -> None:
    from tbscope.writer import SummaryWriter

    with explained(Path(logdir)), SummaryWriter(logdir) as writer:
        writer.add_graph(graph, **drawing)
        for name in overlays:
            writer.add_overlay(name, graph)


def _opening_line(logdir: str) -> str:
    return f"tensorboard --logdir {shlex.quote(logdir)}"
