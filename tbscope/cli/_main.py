"""The command and the list of its commands."""

import click

from tbscope.cli._demo import demo
from tbscope.cli._export import export
from tbscope.cli._show import show

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tbscope", message="%(prog)s %(version)s")
def main() -> None:
    """Draw PyTorch models in TensorBoard's Graphs dashboard.

    Exits with 0 where all went well, with 1 and one message where it did not, and with 2
    where the command line cannot be read.
    """


main.add_command(export)
main.add_command(show)
main.add_command(demo)
