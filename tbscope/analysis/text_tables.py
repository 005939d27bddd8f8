"""Tables: rows under titles, rendered by rich on a terminal and as plain text elsewhere."""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tbscope.messages import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


class Table(NamedTuple):
    """Rows under their titles.

    Attributes:
        titles: The title of each column; all empty for a table without a head.
        rows: The cells of each row.
        numeric: Whether each column is right-aligned.
        footer: Titles and texts below the rows; None for a table without rules.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool]
    footer: Sequence[tuple[str, str]] | None = None

    def __str__(self) -> str:
        """Return the table as plain text, each row on one line."""
        lines = [line.rstrip() for line in self._lines()]
        if self.footer is not None:
            rule = "-" * self.width
            lines[1:1] = [rule]
            lines += [*([rule] if self.footer else []), *self._footer_lines()]
        return "\n".join(lines)

    @property
    def width(self) -> int:
        """The number of characters in the longest row."""
        return max(map(len, self._lines()), default=0)

    def _lines(self) -> list[str]:
        """Return the title row and the rows, padded to equal width."""
        heads = [self.titles] if any(self.titles) else []
        cells = [[visible(cell) for cell in row] for row in (*heads, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, self.numeric, strict=True)
            )
            for row in cells
        ]

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Yield the table in rich's form (the protocol of rich renderables)."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable(
            box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=any(self.titles)
        )
        for at, (title, right) in enumerate(zip(self.titles, self.numeric, strict=True)):
            drawn.add_column(title, justify="right" if right else "left", no_wrap=right or at == 0)
        for row in self.rows:
            drawn.add_row(*(Text(visible(cell)) for cell in row))
        yield drawn
        yield from map(Text, self._footer_lines())

    def _footer_lines(self) -> Iterator[str]:
        footer = self.footer or ()
        width = max((len(title) for title, _ in footer), default=0)
        for title, text in footer:
            yield f"{title.ljust(width)}  {text}"


def shows_rich(*objects: object) -> bool:
    """Print objects with rich if it is installed and standard output is a terminal.

    Returns:
        Whether the objects were printed.
    """
    if not sys.stdout.isatty():
        return False
    try:
        from rich import console as terminals
    except ImportError:
        return False
    # rich itself leaves bold letters, which are no colour.
    plain = os.environ.get("NO_COLOR")
    console = terminals.Console(color_system=None if plain else "auto")
    for at, obj in enumerate(objects):
        if at:
            console.print()
        console.print(obj)
    return True
