"""What a command gives: as text or as JSON, on standard output or in a file."""

import json
from pathlib import Path
from typing import Any

import click

from tbscope.cli._files import check_folder, put_in_file
from tbscope.cli._options import Command, decorate
from tbscope.errors import TbscopeError

__all__ = ["give", "give_json", "gives_results"]


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


def give(text: str, output: Path | None = None) -> None:
    """Print a text with a line end, or put it in a file.

    Raises:
        TbscopeError: The file cannot be written; nothing is left behind.
    """
    # Half a pair of a name stands as its escape, which JSON takes, too.
    data = f"{text}\n".encode("utf-8", "backslashreplace")
    if output is None:
        click.echo(data.decode(), nl=False)
    else:
        put_in_file(output, data)


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
