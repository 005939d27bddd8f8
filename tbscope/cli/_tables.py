"""Tables of a command: with rich where a terminal shows them, as plain text anywhere else."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tbscope.cli._results import give
from tbscope.words import visible

__all__ = ["Table", "give_tables", "plain_cell"]


class Table(NamedTuple):
    """Some rows under their titles.

    Attributes:
        titles: What stands above each column; all empty for a table without a head.
        rows: The cells of each row.
        numeric: How many columns are aligned at the right: the last ones.
    """

    titles: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numeric: int = 0

    def is_numeric(self, column: int) -> bool:
        """Tell whether a column is aligned at the right."""
        return column >= len(self.titles) - self.numeric


def give_tables(tables: Sequence[Table], output: Path | None = None) -> None:
    """Print tables below each other, or put them in a file.

    Raises:
        TbscopeError: The file cannot be written; nothing is left behind.
    """
    if output is None and sys.stdout.isatty() and _printed_rich(tables):
        return
    give("\n\n".join("\n".join(_lines(table)) for table in tables), output)


def plain_cell(text: str) -> str:
    """Return a name of a user's on one line, whatever it holds."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _lines(table: Table) -> Iterator[str]:
    heads = [table.titles] if any(table.titles) else []
    widths = [max(map(len, texts)) for texts in zip(*heads, *table.rows, strict=True)]
    for row in [*heads, *table.rows]:
        cells = [
            cell.rjust(width) if table.is_numeric(column) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _printed_rich(tables: Sequence[Table]) -> bool:
    """Print with rich; tell whether it is installed."""
    try:
        from rich import box
        from rich import print as print_rich
        from rich.table import Table as RichTable
        from rich.text import Text
    except ImportError:
        return False
    for table in tables:
        drawn = RichTable(
            box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=any(table.titles)
        )
        for column, title in enumerate(table.titles):
            drawn.add_column(title, justify="right" if table.is_numeric(column) else "left")
        for row in table.rows:
            drawn.add_row(*[Text(visible(cell)) for cell in row])
        print_rich(drawn)
        if table is not tables[-1]:
            print_rich()
    return True
