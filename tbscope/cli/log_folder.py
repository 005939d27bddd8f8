"""Log folders: writes a graph with overlays for TensorBoard, and returns the line that opens it."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from tbscope.cli.parameters import Command, library_options
from tbscope.options import DRAWING, check_options
from tbscope.overlays.overlay import BUILT_IN
from tbscope.utils.option import take_values

if TYPE_CHECKING:
    from tbscope.ir.graph import Graph


def drawing_options() -> list[Callable[[Command], Command]]:
    """Return decorators that add `--overlay`, and the options of a drawing."""
    return [
        click.option(
            "--overlay",
            "overlays",
            type=click.Choice(list(BUILT_IN)),
            multiple=True,
            metavar="NAME",
            help=f"Draw numbers on the graph, too, under a tag of their name: "
            f"{', '.join(BUILT_IN)}.  [repeatable]",
        ),
        *library_options(DRAWING),
    ]


def take_drawing(options: dict[str, Any]) -> Any:
    """Remove the options of a drawing from those of a command, check them, and return them.

    Raises:
        ArgumentError: An option has a value that it does not take.
    """
    drawing: Any = take_values(DRAWING, options)
    check_options(**drawing)
    return drawing


def changed_options(drawing: Mapping[str, object]) -> dict[str, Any]:
    """Return the options of a drawing that differ from their defaults."""
    return {
        name: value
        for name, value in drawing.items()
        if value not in (None, (), DRAWING[name].default)
    }


def write_log(
    graph: "Graph",
    logdir: str,
    drawing: Any,
    *,
    placing: Mapping[str, Any] | None = None,
    overlays: Iterable[str] = (),
) -> None:
    """Write an event file with a graph, and one more tag for each built-in overlay.

    Args:
        graph: The graph.
        logdir: The folder; it is made if it is missing.
        drawing: The options of all drawings, as for `to_graph_def`.
        placing: The tag of the graph, and the step and the run of all entries; None for defaults.
        overlays: The names of overlays.
    Raises:
        TbscopeError: The folder cannot be written to.
    """
    from tbscope.writer import SummaryWriter

    entry = dict(placing or {})
    with SummaryWriter(logdir) as writer:
        writer.add_graph(graph, **entry, **drawing)
        entry.pop("tag", None)
        for name in dict.fromkeys(overlays):
            writer.add_overlay(name, graph, **entry, **drawing)


def opening_line(logdir: str) -> str:
    """Return the command that opens a folder in TensorBoard."""
    return f"tensorboard --logdir {shlex.quote(logdir)}"
