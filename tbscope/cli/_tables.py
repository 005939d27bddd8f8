"""Tables of a command: drawn by rich on a terminal, as plain text anywhere else."""

from collections.abc import Sequence
from pathlib import Path

from tbscope.cli._results import give
from tbscope.figures.tables import Table, shows_rich

__all__ = ["give_tables", "table"]


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: int = 0) -> Table:
    """Return a table without rules.

    Args:
        titles: The title of each column; all empty for a table without a head.
        rows: The cells of each row.
        numeric: How many columns are aligned at the right: the last ones.
    """
    words = len(titles) - numeric
    return Table(titles, rows, [at >= words for at in range(len(titles))])


def give_tables(tables: Sequence[Table], output: Path | None = None) -> None:
    """Print tables below each other, or put them in a file.

    Raises:
        TbscopeError: The file cannot be written; nothing is left behind.
    """
    if output is not None or not shows_rich(*tables):
        give("\n\n".join(map(str, tables)), output)
