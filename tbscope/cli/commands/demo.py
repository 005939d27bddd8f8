"""`tbscope demo`: writes the graph of a small model, for a first look."""

import click

from tbscope.cli.command_errors import command
from tbscope.cli.log_folder import opening_line, write_log
from tbscope.cli.output import say
from tbscope.cli.parameters import parse_folder


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
    """Write the graph of a small Transformer.

    It prints the command that opens the graph. Under further tags the page colours it by times,
    memory, FLOPs and parameters.
    """
    import torch

    from tbscope.sources.eager.trace import trace

    model = torch.nn.Transformer(
        64, nhead=4, num_encoder_layers=3, num_decoder_layers=3, batch_first=True
    )
    inputs = (torch.zeros(1, 10, 64), torch.zeros(1, 20, 64))
    # In training mode: in evaluation mode torch runs each layer of the encoder as one kernel.
    graph = trace(model, inputs, training=True, profile=True)
    write_log(graph, logdir, {}, overlays=("flops", "parameters"))
    say(opening_line(logdir))
