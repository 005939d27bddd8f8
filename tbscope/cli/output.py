"""Output of a command: text, tables or JSON, on standard output or in a file."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tbscope.analysis.text_tables import Table, shows_rich
from tbscope.cli.parameters import takes
from tbscope.errors import TbscopeError
from tbscope.messages import visible
from tbscope.utils.files import write_whole


def check_folder(path: Path) -> None:
    """Refuse a path whose folder is missing, before any work is done for it.

    Raises:
        TbscopeError: The folder does not exist.
    """
    if not path.parent.is_dir():
        raise TbscopeError(
            f"cannot write {str(path)!r}",
            why=f"there is no folder {str(path.parent)!r}",
            fix=f"make it first: mkdir -p {path.parent}",
        )


def _output_file(_: click.Context, __: click.Parameter, text: str | None) -> Path | None:
    if text is None or text == "-":
        return None
    if not text.strip():
        raise click.BadParameter(f"{text!r} is no name of a file, e.g. out.json")
    try:
        check_folder(Path(text))
    except TbscopeError as error:
        raise click.ClickException(str(error)) from error
    return Path(text)


gives_results = takes(
    click.option("--json", "as_json", is_flag=True, help="Print JSON, for a script."),
    click.option(
        "-o",
        "--output",
        callback=_output_file,
        metavar="FILE",
        help="Write the output to this file; - for standard output, the default.",
    ),
)
"""Adds `--json` (as `as_json`) and `-o FILE` (as `output`, None for standard output)."""


def say(text: str, *, err: bool = False) -> None:
    """Print a text with a line end; every command writes to the terminal through this function.

    Names in a file may contain characters that a terminal obeys: they are escaped, as in JSON.
    """
    click.echo(visible(text), err=err)


def put_in_file(path: Path, data: bytes) -> None:
    """Write bytes to a file atomically: a reader sees the old file or the whole new one.

    Raises:
        TbscopeError: The system refuses; no partial file is left behind.
    """
    try:
        write_whole(str(path), data)
    except OSError as error:
        raise TbscopeError(
            f"cannot write {str(path)!r}",
            why=f"{type(error).__name__}: {error.strerror or error}",
            fix="check that the path may be written to and that the disk is not full",
        ) from error


def give(text: str, output: Path | None = None) -> None:
    """Print a text with a line end, or write it to a file.

    Raises:
        TbscopeError: The file cannot be written; no partial file is left behind.
    """
    if output is None:
        say(text)
    else:
        put_in_file(output, f"{visible(text)}\n".encode())


def give_document(data: bytes) -> None:
    """Print a document (DOT, SVG, ...) for another program; on a terminal, as `say` does."""
    if sys.stdout.isatty():
        say(data.decode().rstrip("\n"))
    else:
        click.echo(data, nl=False)


def give_json(data: object, output: Path | None) -> None:
    """Print plain data as JSON, or write it to a file, as `give` does."""
    give(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False), output)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: int = 0) -> Table:
    """Return a table without rules.

    Args:
        titles: The title of each column; all empty for a table without a head.
        rows: The cells of each row.
        numeric: The number of columns, the last ones, that are aligned at the right.
    """
    words = len(titles) - numeric
    return Table(titles, rows, [at >= words for at in range(len(titles))])


def give_tables(tables: Sequence[object], output: Path | None = None) -> None:
    """Print tables below each other, drawn by rich on a terminal, or write them to a file as text.

    Raises:
        TbscopeError: The file cannot be written; no partial file is left behind.
    """
    if output is not None or not shows_rich(*tables):
        give("\n\n".join(map(str, tables)), output)
