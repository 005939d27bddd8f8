"""What a command gives: as text or as JSON, on standard output or in a file."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from tbscope.cli._files import check_folder, put_in_file
from tbscope.cli._options import Command, decorate
from tbscope.errors import TbscopeError
from tbscope.words import visible

__all__ = ["give", "give_document", "give_json", "gives_results", "say"]


def gives_results(command: Command) -> Command:
    """Add `--json` (as `as_json`) and `-o FILE` (as `output`, None for standard output)."""
    return decorate(
        command,
        [
            click.option("--json", "as_json", is_flag=True, help="Print JSON, for a script."),
            click.option(
                "-o",
                "--output",
                callback=_output_file,
                metavar="FILE",
                help="Write it into this file; - for standard output, the default.",
            ),
        ],
    )


def say(text: str, *, err: bool = False) -> None:
    """Print a text with a line end: the one way by which a command writes to the terminal.

    A file may hold any name, and a terminal obeys some: these are escaped, as in JSON.
    """
    click.echo(visible(text), err=err)


def give(text: str, output: Path | None = None) -> None:
    """Print a text with a line end, or put it in a file.

    Raises:
        TbscopeError: The file cannot be written; nothing is left behind.
    """
    if output is None:
        say(text)
    else:
        put_in_file(output, f"{visible(text)}\n".encode())


def give_document(data: bytes) -> None:
    """Print a document of another program's; on a terminal as `say` does, else as it is."""
    if sys.stdout.isatty():
        say(data.decode().rstrip("\n"))
    else:
        click.echo(data, nl=False)


def give_json(data: Any, output: Path | None = None) -> None:
    """Print plain data as JSON, or put it in a file, as `give` does."""
    give(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False), output)


def _output_file(_: click.Context, __: click.Parameter, text: str | None) -> Path | None:
    if text is None or text == "-":
        return None
    if not text.strip() or "\0" in text:
        raise click.BadParameter(f"{text!r} is no name of a file, e.g. out.json")
    try:
        check_folder(Path(text))
    except TbscopeError as error:
        raise click.ClickException(str(error)) from error
    return Path(text)
