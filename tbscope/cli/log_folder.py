"""Writes a graph into a folder for TensorBoard, with overlays, and tells how to open it."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from tbscope.cli.command_errors import in_command_words
from tbscope.cli.parameters import Command, library_options
from tbscope.options import DRAWING
from tbscope.overlays.overlay import BUILT_IN

if TYPE_CHECKING:
    from tbscope.ir.graph import Graph

__all__ = ["drawing_options", "opening_line", "write_log"]


def drawing_options() -> list[Callable[[Command], Command]]:
    """Return decorators that add overlays, and how a graph is drawn."""
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


def write_log(
    graph: "Graph",
    logdir: str,
    drawing: Any,
    *,
    place: Mapping[str, Any] | None = None,
    overlays: Iterable[str] = (),
) -> None:
    """Write an event file with a graph, and one more tag for each built-in overlay.

    Args:
        graph: The graph.
        logdir: The folder; it is made where it is missing.
        drawing: How all of them are drawn, as for `to_graph_def`.
        place: The tag of the graph, and the step and the run of all; None for none.
        overlays: The names of overlays.
    Raises:
        TbscopeError: The folder cannot be written to.
    """
    from tbscope.writer import SummaryWriter

    given = dict(place or {})
    with in_command_words(), SummaryWriter(logdir) as writer:
        writer.add_graph(graph, **given, **drawing)
        given.pop("tag", None)
        for name in dict.fromkeys(overlays):
            writer.add_overlay(name, graph, **given, **drawing)


def opening_line(logdir: str) -> str:
    """Return the command that opens a folder in TensorBoard."""
    return f"tensorboard --logdir {shlex.quote(logdir)}"
