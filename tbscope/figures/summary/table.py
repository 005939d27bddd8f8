"""The summary of a graph: its table as text, for a terminal, for a notebook, and as rows."""

import html
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tbscope.checks import check_truth
from tbscope.errors import ArgumentError
from tbscope.figures.summary.columns import Column, chosen_columns
from tbscope.figures.summary.fold import Line, folded, unfolded
from tbscope.figures.summary.footer import footer_lines, model_totals
from tbscope.figures.summary.part import Part
from tbscope.figures.summary.parts import model_parts
from tbscope.figures.summary.ranks import rank_lines, rank_rows
from tbscope.figures.summary.rows import Row, add_rows, part_row
from tbscope.figures.summary.told import leave_open, told_of
from tbscope.functions.definition import Definition
from tbscope.functions.functions import Functions
from tbscope.ir.forms import require_graph
from tbscope.ir.graph import Graph
from tbscope.ir.scopes import Scope
from tbscope.words import shown, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Summary"]

# Parts that are deeper are not indented further.
_MOST_INDENTED = 30

# What a narrow terminal has no room for, the first one first.
_LEAST_NEEDED = ("input", "share", "activation_bytes", "calls", "output", "class")

_STYLE = (
    "<style>.tbscope-summary td, .tbscope-summary th {text-align: left; white-space: nowrap}"
    " .tbscope-summary .number {text-align: right}"
    " .tbscope-summary tfoot td {white-space: normal}</style>"
)


class Summary:
    """The table of a graph's modules.

    `print(summary)` prints it as plain text, `summary.show()` for the terminal; a notebook
    shows it as HTML.

    Args:
        graph: The graph as it was recorded.
        depth: The most modules around one that still has a line; None for any number. The
            figures of a line are those of all below it, so none is lost.
        columns: The columns beside the tree, as keys of the rows; None for those that have
            something to tell.
        per_call: Whether each call of a module has a line of its own.
        fold: Whether equal modules that are numbered on print as one line, with the sum of
            their figures.

    Attributes:
        rows: For each module a mapping from names to plain numbers and words, never folded.
        totals: The figures of the whole.
        footer: What stands below the table, the totals among it: titles and texts.
        ranks: Of a merged graph what each rank holds and does, as a mapping like those of `rows`;
            empty for any other.

    Raises:
        ArgumentError: There is no such column, or the depth is no number of modules.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        depth: int | None = None,
        columns: Sequence[str] | None = None,
        per_call: bool = False,
        fold: bool = True,
    ) -> None:
        _check_depth(depth)
        check_truth("per_call", per_call)
        check_truth("fold", fold)
        require_graph(graph, "Summary")
        told = told_of(graph)
        root = model_parts(graph, per_call=per_call, by_nodes=told is not None)
        totals = model_totals(graph, root)
        lines = list(unfolded(root, None))
        rows = {
            line.parts[0]: part_row(
                line.parts[0], depth=line.depth, all_parameters=totals["parameters"]
            )
            for line in lines
        }
        if told is not None:
            leave_open(told, totals, rows.values())
        self.rows: list[Row] = [
            row for row in rows.values() if depth is None or row["depth"] <= depth
        ]
        self.totals: Row = totals
        self._columns = chosen_columns(columns, self.rows)
        self._chosen = columns is not None
        self._lines = _Lines(graph, root, rows, depth=depth, fold=fold)
        self.ranks: list[Row] = rank_rows(graph)
        self.footer = [*footer_lines(totals), *rank_lines(graph)]

    def __str__(self) -> str:
        """Return the table as plain text."""
        cells = _Cells(self._lines, self._columns)
        rule = "-" * cells.width
        numeric = [False, *(column.numeric for column in self._columns)]
        texts = [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, cells.widths, numeric, strict=True)
            ).rstrip()
            for line in (cells.head, *cells.body)
        ]
        width = max((len(title) for title, _ in self.footer), default=0)
        footer = [f"{title.ljust(width)}  {text}" for title, text in self.footer]
        return "\n".join([texts[0], rule, *texts[1:], *([rule] if footer else []), *footer])

    def __repr__(self) -> str:
        return str(self)

    def show(self) -> None:
        """Print it: with rich where that is installed and a terminal is there, else as text."""
        if sys.stdout.isatty():
            try:
                from rich import print as print_rich
            except ImportError:
                pass
            else:
                print_rich(self)
                return
        print(self)  # noqa: T201 (that is what it is asked for)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Return the table as rich draws it, with as many columns as have room."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        columns, left_out = self._columns, []
        cells = _Cells(self._lines, columns)
        for name in () if self._chosen else _LEAST_NEEDED:
            # Rich has one more space between columns.
            if cells.width + len(columns) <= options.max_width:
                break
            left_out += [column for column in columns if column.name == name]
            columns = [column for column in columns if column.name != name]
            cells = _Cells(self._lines, columns)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column("Module", no_wrap=True)
        for column in columns:
            right = column.numeric
            table.add_column(column.title, justify="right" if right else "left", no_wrap=right)
        for (_, row), line in zip(self._lines, cells.body, strict=True):
            style = "dim" if row["kind"] == "unused" else ""
            table.add_row(*(Text(cell) for cell in line), style=style)
        yield table
        footer = Table.grid(padding=(0, 2))
        told = list(self.footer)
        if left_out:
            told.append(("No room for", ", ".join(column.title for column in left_out)))
        for title, text in told:
            footer.add_row(Text(title, style="bold"), Text(text))
        yield footer

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        heads = "".join(
            f"<th{_html_class(column)}>{html.escape(column.title)}</th>" for column in self._columns
        )
        body = "".join(self._html_rows())
        width = len(self._columns) + 1
        footer = "".join(
            f'<tr><th>{html.escape(title)}</th><td colspan="{width - 1}">'
            f"{html.escape(text)}</td></tr>"
            for title, text in self.footer
        )
        return (
            f'{_STYLE}<table class="tbscope-summary"><thead><tr><th>Module</th>{heads}</tr>'
            f"</thead><tbody>{body}</tbody><tfoot>{footer}</tfoot></table>"
        )

    def _html_rows(self) -> Iterator[str]:
        for line, row in self._lines:
            indent = 1.2 * min(line.depth, _MOST_INDENTED)
            cells = "".join(
                f"<td{_html_class(column)}{_html_exact(column, row)}>"
                f"{html.escape(_cell(column, line, row))}</td>"
                for column in self._columns
            )
            name = html.escape(row["name"] or line.title)
            yield (
                f'<tr><td title="{name}" style="padding-left: {indent:.1f}em">'
                f"{html.escape(line.title)}</td>{cells}</tr>"
            )


class _Cells:
    """The texts of a table, with the width of each column.

    Attributes:
        head: What stands above each column.
        body: The cells of each line.
        widths: The width of each column.
        width: The width of the table, with two spaces between columns.
    """

    def __init__(self, lines: "_Lines", columns: Sequence[Column]) -> None:
        self.head = ["Module", *(column.title for column in columns)]
        self.body = [
            [
                f"{'  ' * min(line.depth, _MOST_INDENTED)}{visible(line.title)}",
                *(visible(_cell(column, line, row)) for column in columns),
            ]
            for line, row in lines
        ]
        self.widths = [max(map(len, texts)) for texts in zip(self.head, *self.body, strict=True)]
        self.width = sum(self.widths) + 2 * (len(self.widths) - 1)


def _cell(column: Column, line: Line, row: Row) -> str:
    text = column.text(row)
    return f"{line.times} x {text}" if column.name == "class" and line.times > 1 else text


class _Lines:
    """The lines of the printed table with their rows, made each time that they are asked for."""

    def __init__(
        self, graph: Graph, root: Part, rows: dict[Part, Row], *, depth: int | None, fold: bool
    ) -> None:
        self._graph = graph
        self._root = root
        self._rows = rows
        self._depth = depth
        self._fold = fold
        self._found: Mapping[Scope, Definition] | None = None

    def __iter__(self) -> Iterator[tuple[Line, Row]]:
        rows = self._rows
        if self._fold:
            lines = folded(self._root, self._depth, rows, self._definitions)
        else:
            lines = unfolded(self._root, self._depth)
        for line in lines:
            yield line, add_rows([rows[part] for part in line.parts])

    def _definitions(self) -> Mapping[Scope, Definition]:
        """Return the definition of each call; found once, as few tables are printed."""
        if self._found is None:
            self._found = {
                use.scope: one
                for one in Functions(self._graph)
                for use in one.uses
                if use.scope is not None
            }
        return self._found


def _html_class(column: Column) -> str:
    return ' class="number"' if column.numeric else ""


def _html_exact(column: Column, row: Row) -> str:
    """Return the exact number as a title, which is shown where the pointer rests."""
    told: Any = row[column.name]
    return f' title="{told:,}"' if column.numeric and told else ""


def _check_depth(depth: object) -> None:
    if depth is not None and (type(depth) is not int or depth < 0):
        raise ArgumentError(
            f"depth={shown(depth)} is no number of modules",
            why="it says how many modules may stand around one that still has a line",
            fix="give depth=0 for the model alone, depth=2 for two levels in it, None for all",
        )
