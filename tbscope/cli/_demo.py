"""`tbscope demo`: writes the graph of a small model, to be looked at."""

import click

from tbscope.cli._command import command
from tbscope.cli._log import opening_line, write_log
from tbscope.cli._parameters import parse_folder
from tbscope.cli._results import say

__all__ = ["demo"]


@command
@click.option(
    "--logdir",
    type=parse_folder,
    default="runs/demo",
    show_default=True,
    metavar="FOLDER",
    help="Folder for the event file.",
)
def demo(*, logdir: str) -> None:
    """Write the graph of a small captioning model.

    The line that opens it is printed. Under further tags the page colours it by times, memory,
    FLOPs and parameters.
    """
    from tbscope.cli._demo_model import make_inputs, make_model
    from tbscope.sources.eager.trace import trace

    graph = trace(make_model(), make_inputs(), profile=True)
    write_log(graph, logdir, {}, overlays=("flops", "parameters"))
    say(opening_line(logdir))
