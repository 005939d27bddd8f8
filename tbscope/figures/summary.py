"""The summary of a graph: the table of its modules, as rows and as text."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tbscope.checks import check_truth
from tbscope.errors import ArgumentError
from tbscope.figures.columns import Column, Row, chosen_columns
from tbscope.figures.costs import Costs, node_costs
from tbscope.figures.fold import Line, equal_parts, lines_of
from tbscope.figures.tables import Table, shows_rich
from tbscope.figures.units import bytes_text, count_text, duration_text, flops_text
from tbscope.functions.definition import Definition
from tbscope.functions.functions import Functions
from tbscope.ir.graph import Call, Graph, Nest, Shape, Value, require_graph
from tbscope.ir.modules import (
    ModuleTree,
    Part,
    lists_parameters,
    numbers_in,
    parameter_key,
    walk,
)
from tbscope.ir.nests import walk as walk_nest
from tbscope.ir.scopes import Scope
from tbscope.words import first_of, shown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Summary", "add_rows", "costs_row", "part_row"]

# Parts that are deeper are not indented further.
_MOST_INDENTED = 30
_MOST_NAMED = 6

# A narrow terminal has no room for these, the first one first.
_LEAST_NEEDED = ("input", "share", "activation_bytes", "calls", "output", "class")

# What runs inside of a scripted module is seen, but not in which part of it.
_SCRIPTED = "torch.jit."

# The figures of a row of several parts are the sums of these.
_SUMMED = (
    *("calls", "parameters", "own_parameters", "trainable_parameters", "shared_parameters"),
    *("share", "parameter_bytes", "buffers", "buffer_bytes", "flops", "backward_flops"),
    *("activation_bytes", "moved_bytes", "saved_bytes", "duration_us"),
)


class Summary:
    """The table of a graph's modules.

    `print(summary)` prints it as plain text, `summary.show()` for the terminal.

    Args:
        graph: The graph as it was recorded.
        depth: The most modules around one that still has a line; None for any number. The
            figures of a line are those of all below it, so none is lost.
        columns: The columns beside the tree, as keys of the rows; None for those with figures
            that differ or are not 0.
        fold: Whether equal modules that are numbered on print as one line, with the sum of
            their figures.

    Attributes:
        rows: For each module a mapping from names to plain numbers and words, never folded.
        totals: The figures of the whole.
        footer: The lines below the table, the totals among them: titles and texts.

    Raises:
        ArgumentError: There is no such column, or the depth is no number of modules.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        depth: int | None = None,
        columns: Sequence[str] | None = None,
        fold: bool = True,
    ) -> None:
        if depth is not None and (type(depth) is not int or depth < 0):
            raise ArgumentError(
                f"depth={shown(depth)} is no number of modules",
                why="it says how many modules may stand around one that still has a line",
                fix="give depth=0 for the model alone, depth=2 for two levels in it, None for all",
            )
        check_truth("fold", fold)
        require_graph(graph, "Summary")
        self._graph = graph
        self._depth = depth
        self._fold = fold
        self._root, costs = _parts_with_costs(graph)
        parts = list(walk(self._root))
        depths = {self._root: 0}
        for part in parts[1:]:
            assert part.parent is not None
            depths[part] = depths[part.parent] + 1
        numbers = self._root.holds.parameters
        self._rows = {
            part: part_row(part, costs[part], depth=depths[part], all_parameters=numbers)
            for part in parts
        }
        self.rows: list[Row] = [
            row for row in self._rows.values() if depth is None or row["depth"] <= depth
        ]
        self.totals = _totals(graph, parts, costs[self._root])
        self._columns = chosen_columns(columns, self.rows)
        self._chosen = columns is not None
        # Nodes of parameters without sizes count nothing, and 0 would be wrong.
        counted = bool(numbers) or all(node.kind != "parameter" for node in graph.nodes)
        self.footer = [*_footer(self.totals, counted=counted)]

    def __str__(self) -> str:
        """Return the table as plain text."""
        return str(self._table(self._columns))

    def __repr__(self) -> str:
        return str(self)

    def show(self) -> None:
        """Print it: by rich if that is installed and a terminal reads, else as text."""
        if not shows_rich(self):
            print(self)  # noqa: T201  That is the purpose of the method.

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Yield the table as rich draws it, with as many columns as have room."""
        columns, left_out = self._columns, []
        for name in () if self._chosen else _LEAST_NEEDED:
            # Rich has one more space between columns.
            if self._table(columns).width + len(columns) <= options.max_width:
                break
            left_out += [column.title for column in columns if column.name == name]
            columns = [column for column in columns if column.name != name]
        footer = [("No room for", ", ".join(left_out))] if left_out else []
        yield self._table(columns)._replace(footer=[*self.footer, *footer])

    def _table(self, columns: Sequence[Column]) -> Table:
        return Table(
            ["Module", *(column.title for column in columns)],
            [self._cells(line, columns) for line in self._lines],
            [False, *(column.numeric for column in columns)],
            self.footer,
        )

    @cached_property
    def _lines(self) -> list[Line]:
        equal = equal_parts(self._root, self._rows, self._definitions) if self._fold else {}
        return [*lines_of(self._root, self._depth, equal)]

    def _cells(self, line: Line, columns: Sequence[Column]) -> list[str]:
        row = add_rows([self._rows[part] for part in line.parts])
        cells = [f"{'  ' * min(line.depth, _MOST_INDENTED)}{line.title}"]
        for column in columns:
            times = f"{line.times} x " if column.name == "class" and line.times > 1 else ""
            cells.append(times + column.text(row))
        return cells

    def _definitions(self) -> Mapping[Scope, Definition]:
        """Return the definition of each call."""
        return {
            use.scope: one
            for one in Functions(self._graph)
            for use in one.uses
            if use.scope is not None
        }


def _parts_with_costs(graph: Graph) -> tuple[Part, Mapping[Part, Costs]]:
    """Return the outermost part of a graph, and the costs of all that ran in each part."""
    tree = ModuleTree(graph, count_nodes=not lists_parameters(graph))
    root = tree.top
    costs: dict[Part, Costs] = defaultdict(Costs)
    for node, cost in node_costs(graph).items():
        costs[tree.part_of[node.scope] if node.scope else root].add(cost)
    if len(root.children) == 1 and root not in costs and not root.held:
        (root,) = root.children
        root.parent = None
    for part in reversed(list(walk(root))):
        if part.kind == "unused" and part.class_name.startswith(_SCRIPTED):
            part.kind = "container"
        if part.parent is not None:
            costs[part.parent].add(costs[part])
            if part.kind != "unused" and part.parent.kind == "unused":
                part.parent.kind = "container"
    return root, costs


# -- rows -----------------------------------------------------------------------------------


def part_row(part: Part, costs: Costs, *, depth: int, all_parameters: int) -> Row:
    """Return the row of one part.

    Args:
        part: The part.
        costs: The costs of all that ran in it.
        depth: How many parts are around it.
        all_parameters: Numbers in the parameters of the whole model.
    """
    taken = [_shapes_taken(call) for call in part.calls]
    gave = [_shapes(call.results, "out") for call in part.calls]
    holds = part.holds
    own = {parameter_key(part, one): one for one in part.held if one.kind == "parameter"}
    return {
        "depth": depth,
        "module": part.title,
        "name": part.name,
        "class": "" if part.kind in ("graph", "scope") else part.label,
        "kind": part.kind,
        "scope": part.scopes[0].path if part.scopes else None,
        "calls": len(part.calls),
        "input": taken[0] if taken else None,
        "output": gave[0] if gave else None,
        "varies": any(one != taken[0] for one in taken) or any(one != gave[0] for one in gave),
        "parameters": holds.parameters,
        "own_parameters": sum(map(numbers_in, own.values())),
        "trainable_parameters": holds.trainable,
        "shared_parameters": holds.shared,
        "share": holds.parameters / all_parameters if all_parameters else 0.0,
        "parameter_bytes": holds.parameter_bytes,
        "buffers": holds.buffers,
        "buffer_bytes": holds.buffer_bytes,
        **costs_row(costs),
    }


def costs_row(costs: Costs) -> Row:
    """Return costs as entries of a row; None for FLOPs of which none could be counted."""
    known = costs.flops or costs.backward_flops or not costs.uncounted
    return {
        "flops": costs.flops if known else None,
        "backward_flops": costs.backward_flops if known else None,
        "uncounted": dict(costs.uncounted),
        "activation_bytes": costs.activation_bytes,
        "moved_bytes": costs.moved_bytes,
        "saved_bytes": costs.saved_bytes,
        "intensity": costs.intensity if known else None,
        "duration_us": costs.duration_us,
    }


def add_rows(rows: list[Row]) -> Row:
    """Return the row of several equal parts: sums of numbers, else the entries of the first."""
    whole = dict(rows[0])
    shapes = whole["input"], whole["output"]
    whole["varies"] = any(row["varies"] or (row["input"], row["output"]) != shapes for row in rows)
    for name in _SUMMED:
        known = [row[name] for row in rows if row[name] is not None]
        whole[name] = sum(known) if known else None
    counted = whole["flops"] is not None and whole["moved_bytes"]
    whole["intensity"] = whole["flops"] / whole["moved_bytes"] if counted else None
    return whole


def _shapes_taken(call: Call) -> dict[str, Shape | None]:
    found: dict[str, Shape | None] = {}
    for position, (name, nest) in enumerate(call.arguments):
        found.update(_shapes(nest, name or str(position)))
    return found


def _shapes(nest: Nest, path: str) -> dict[str, Shape | None]:
    """Return the shape of each tensor in a nest by its path: `logits`, `out.0`, `past.0.key`.

    The keys of an outermost mapping are paths by themselves, as in the names of a graph's outputs.
    """
    whole = "" if path == "out" and isinstance(nest, dict) else path
    return {path: entry.shape for path, entry in walk_nest(nest, whole) if isinstance(entry, Value)}


# -- the lines below the table --------------------------------------------------------------


def _totals(graph: Graph, parts: Sequence[Part], costs: Costs) -> Row:
    """Return the totals of a graph, under the keys of a row and some more.

    These are: `unregistered_parameters`, `tied` for the names of tied parameters, `reasons` why
    kernels have no FLOPs, and `profile` for how times were measured.
    """
    holds = parts[0].holds
    return {
        "parameters": holds.parameters,
        "trainable_parameters": holds.trainable,
        "unregistered_parameters": sum(
            part.holds.parameters
            for part in parts
            if part.unregistered and part.parent and not part.parent.unregistered
        ),
        "parameter_bytes": holds.parameter_bytes,
        "buffers": holds.buffers,
        "buffer_bytes": holds.buffer_bytes,
        "tied": _tied(parts),
        **costs_row(costs),
        "reasons": dict(graph.uncounted),
        "profile": graph.profile,
    }


def _tied(parts: Sequence[Part]) -> list[tuple[str, ...]]:
    """Return the names of each parameter that has several."""
    names: dict[int | str, dict[str, None]] = {}
    for part in parts:
        if part.name is not None:
            for parameter in (*part.held, *part.borrowed):
                if parameter.kind == "parameter":
                    name = f"{part.name}.{parameter.name}".lstrip(".")
                    names.setdefault(parameter_key(part, parameter), {})[name] = None
    return [tuple(several) for several in names.values() if len(several) > 1]


def _footer(totals: Mapping[str, Any], *, counted: bool) -> Iterator[tuple[str, str]]:
    """Yield the lines below the table, each with a title and a text."""
    if counted:
        count, trainable = totals["parameters"], totals["trainable_parameters"]
        learnt = f", {trainable:,} trainable" if trainable else ", all frozen"
        if trainable == count:
            learnt = ", all trainable" if count else ""
        yield "Parameters", f"{count:,} ({bytes_text(totals['parameter_bytes'])}){learnt}"
    if totals["tied"]:
        yield "Tied (=)", f"{first_of(map(' = '.join, totals['tied']), _MOST_NAMED)}; counted once"
    if totals["unregistered_parameters"]:
        more = count_text(totals["unregistered_parameters"])
        yield "Unregistered", f"{more} more, in modules that no module registers"
    if totals["buffers"]:
        yield "Buffers", f"{totals['buffers']:,} ({bytes_text(totals['buffer_bytes'])})"
    if totals["flops"]:
        backward = totals["backward_flops"]
        also = f", {flops_text(backward)} backward" if backward else ""
        yield "FLOPs", f"{flops_text(totals['flops'])} forward{also}"
    if totals["uncounted"]:
        yield "Not in FLOPs", _uncounted(totals["uncounted"], totals["reasons"])
    if totals["activation_bytes"]:
        yield "Activations", bytes_text(totals["activation_bytes"])
    if totals["duration_us"] is not None:
        text, profile = f"{duration_text(totals['duration_us'])} in operations", totals["profile"]
        if profile is not None:
            run = duration_text(profile.forward_us)
            text += f"; an unwatched run took {run} (median of {profile.steps})"
        yield "Time", text


def _uncounted(times: Mapping[str, int], reasons: Mapping[str, str]) -> str:
    """Name the kernels, the most frequent first, with their reason if it is a rare one."""
    common = Counter(reasons.values()).most_common(1)[0][0] if reasons else ""
    texts = []
    for name, count in sorted(times.items(), key=lambda pair: (-pair[1], pair[0])):
        text = f"{name} x{count}" if count > 1 else name
        why = reasons.get(name, "")
        texts.append(f"{text} ({why})" if why != common else text)
    return first_of(texts, _MOST_NAMED)
