"""`tbscope show`: prints the graph of a model, the table of its modules, or their definitions."""

from typing import Any

import click

from tbscope.cli._command import command
from tbscope.cli._running import graph_of_target, takes_a_target

__all__ = ["show"]


@command
@takes_a_target
@click.option("--sources", is_flag=True, help="End each line in its place in the model's code.")
@click.option("--parameters", is_flag=True, help="Give parameters and buffers lines of their own.")
@click.option(
    "--summary",
    is_flag=True,
    help="Print the table of its modules instead: shapes, parameters, FLOPs, bytes.",
)
@click.option(
    "--functions",
    "definitions",
    is_flag=True,
    help="Print each definition that its calls share instead, and the graph of their uses.",
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
    definitions: bool,
    depth: int | None,
    **run: Any,
) -> None:
    """Print the graph of a model, the table of its modules, or their definitions.

    TARGET is package.module:NAME or path/to/file.py:NAME, where NAME is a model, or a function
    or class that makes one; or the path of a graph: a log, a GraphDef, or any file that
    tbscope.load takes.

    \b
    tbscope show torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3
    tbscope show nets.py:make_model -i 2x3 --summary --depth 2
    tbscope show nets.py:make_model -i 2x3 --functions
    tbscope show model.onnx --summary
    tbscope show runs/net
    """  # noqa: D301
    if depth is not None and not summary:
        raise click.UsageError("--depth is for the table: give --summary, too.")
    if summary and definitions:
        raise click.UsageError("--summary and --functions are two ways to print: give one.")
    if (summary or definitions) and (sources or parameters):
        other = "--summary" if summary else "--functions"
        raise click.UsageError(f"--sources and --parameters are for lines, not for {other}.")
    graph = graph_of_target(**run)
    if summary:
        graph.summary(depth=depth).show()
        return
    if definitions:
        click.echo(str(graph.functions()))
        return
    from tbscope.ir.text import graph_to_text

    click.echo(graph_to_text(graph, sources=sources, parameters=parameters))
