"""The summary of a graph: the table of its modules as rows and as text, and counts by class."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tbscope.analysis.collapse_repeats import SummaryLine, equal_parts, lines_of
from tbscope.analysis.costs import Costs, node_costs
from tbscope.analysis.summary_columns import Column, Row, chosen_columns
from tbscope.analysis.text_tables import Table, shows_rich
from tbscope.analysis.units import bytes_text, count_text, counted, duration_text, flops_text
from tbscope.errors import ArgumentError
from tbscope.functions.functions import Functions
from tbscope.ir.graph import Graph, Nest, Shape, Value, require_graph
from tbscope.ir.module_tree import (
    ModulePart,
    ModuleTree,
    has_parameter_lists,
    numel_of,
    parameter_key,
    walk,
)
from tbscope.ir.nodes import type_to_text
from tbscope.ir.pytree import walk as walk_nest
from tbscope.messages import first_of, shown
from tbscope.utils.validation import check_truth

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Summary", "add_rows", "costs_row", "count_by_class", "part_row"]

# The indentation ends at this depth.
_MOST_INDENTED = 30
_MOST_NAMED = 6

# The columns that are left out on a narrow terminal, in this order.
_LEAST_NEEDED = ("input", "share", "activation_bytes", "calls", "output", "class")

# The operations of a scripted module are recorded, but not which of its submodules ran them.
_SCRIPTED = "torch.jit."

# The columns that are summed in a row of several parts.
_SUMMED = (
    *("calls", "parameters", "own_parameters", "trainable_parameters", "shared_parameters"),
    *("share", "parameter_bytes", "buffers", "buffer_bytes", "flops", "backward_flops"),
    *("activation_bytes", "moved_bytes", "saved_bytes", "duration_us"),
)

# The keys that are omitted from rows of operations and from the totals of `count_by_class`.
_LEFT_OUT = ("profile", "uncounted", "reasons", "tied")


class Summary:
    """The table of a graph's modules.

    `print(summary)` prints it as plain text, `summary.show()` for the terminal.

    Args:
        graph: The graph as recorded.
        depth: The largest number of enclosing modules of a module with a line; None for no limit.
            The figures of a line include all modules below it, so the totals stay complete.
        columns: The columns beside the tree, as keys of the rows; None for the columns with
            figures that differ or are not 0.
        fold: Whether equal modules with consecutive numbers print as one line, with the sum of
            their figures.

    Attributes:
        rows: For each module a mapping from names to plain numbers and texts, never folded.
        totals: The figures of the whole model.
        footer: The lines below the table, the totals among them: titles and texts.

    Raises:
        ArgumentError: A column does not exist, or the depth is not a number of modules.
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
                why="it is the number of enclosing modules that a line of the table may have",
                fix="give depth=0 for the model alone, depth=2 for two levels in it, None for all",
            )
        check_truth("fold", fold)
        require_graph(graph, "Summary")
        self._graph = graph
        self._depth = depth
        self._fold = fold
        self._root, costs = _parts_with_costs(graph)
        parts = walk(self._root)
        numbers = self._root.holds.parameters
        self._rows: dict[ModulePart, Row] = {}
        for part in parts:
            enclosing = 0 if part.parent is None else self._rows[part.parent]["depth"] + 1
            row = part_row(part, costs[part], depth=enclosing, all_parameters=numbers)
            self._rows[part] = row
        self.rows: list[Row] = [
            row for row in self._rows.values() if depth is None or row["depth"] <= depth
        ]
        self.totals = _totals(graph, parts, costs[self._root])
        self._columns = chosen_columns(columns, self.rows)
        self._chosen = columns is not None
        # Parameter nodes without sizes count no elements, so a total of 0 would be wrong.
        known = bool(numbers) or all(node.kind != "parameter" for node in graph.nodes)
        self.footer = [*_footer(self.totals, parameters=known)]

    def __str__(self) -> str:
        """Return the table as plain text."""
        return str(self._table(self._columns))

    __repr__ = __str__

    def show(self) -> None:
        """Print the summary, with rich if it is installed and stdout is a terminal, or as text."""
        if not shows_rich(self):
            print(self)  # noqa: T201  That is the purpose of the method.

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Yield the table in rich's form, with the columns that fit the terminal's width."""
        columns, left_out = self._columns, []
        for name in () if self._chosen else _LEAST_NEEDED:
            # Rich adds a space between columns.
            if self._table(columns).width + len(columns) <= options.max_width:
                break
            left_out += [column.title for column in columns if column.name == name]
            columns = [column for column in columns if column.name != name]
        footer = [("No room for", ", ".join(left_out))] if left_out else []
        yield self._table(columns)._replace(footer=[*self.footer, *footer])

    def _table(self, columns: Sequence[Column]) -> Table:
        rows = []
        for line, row in self._lines:
            cells = [f"{'  ' * min(line.depth, _MOST_INDENTED)}{line.title}"]
            for column in columns:
                times = f"{line.times} x " if column.name == "class" and line.times > 1 else ""
                cells.append(times + column.text(row))
            rows.append(cells)
        titles = ["Module", *(column.title for column in columns)]
        return Table(titles, rows, [False, *(column.numeric for column in columns)], self.footer)

    @cached_property
    def _lines(self) -> list[tuple[SummaryLine, Row]]:
        """The lines of the table, each with its row."""
        equal: Mapping[ModulePart, int] = {}
        if self._fold:
            equal = equal_parts(self._root, self._rows, lambda: Functions(self._graph).uses)
        return [
            (line, add_rows([self._rows[part] for part in line.parts]))
            for line in lines_of(self._root, self._depth, equal)
        ]


def _parts_with_costs(graph: Graph) -> tuple[ModulePart, Mapping[ModulePart, Costs]]:
    """Return the outermost part of a graph, and the costs of all operations in each part."""
    tree = ModuleTree(graph, count_nodes=not has_parameter_lists(graph))
    root = tree.top
    costs: dict[ModulePart, Costs] = defaultdict(Costs)
    for node, cost in node_costs(graph).items():
        costs[tree.part_of[node.scope] if node.scope else root].add(cost)
    # The only model of a graph is the root of the table, unless something ran outside of it.
    if len(root.children) == 1 and root not in costs and not root.own_state:
        (root,) = root.children
        root.parent = None
    for part in reversed(walk(root)):
        if part.kind == "unused" and part.class_name.startswith(_SCRIPTED):
            part.kind = "container"
        if part.parent is not None:
            costs[part.parent].add(costs[part])
            # A module that was not called, but contains a used part, is a container.
            if part.kind != "unused" and part.parent.kind == "unused":
                part.parent.kind = "container"
    return root, costs


# -- rows -----------------------------------------------------------------------------------


def part_row(part: ModulePart, costs: Costs, *, depth: int, all_parameters: int) -> Row:
    """Return the row of one part.

    Args:
        part: The part.
        costs: The costs of all operations in it.
        depth: The number of its enclosing parts.
        all_parameters: The number of elements in the parameters of the whole model.
    """
    inputs = [
        {
            path: shape
            for position, (name, nest) in enumerate(call.arguments)
            for path, shape in _shapes(nest, name or str(position)).items()
        }
        for call in part.calls
    ]
    outputs = [_shapes(call.results, "out") for call in part.calls]
    holds = part.holds
    own = {parameter_key(part, item): item for item in part.own_state if item.kind == "parameter"}
    return {
        "depth": depth,
        "module": part.title,
        "name": part.name,
        "class": "" if part.kind in ("graph", "scope") else part.label,
        "kind": part.kind,
        "scope": part.scopes[0].path if part.scopes else None,
        "calls": len(part.calls),
        "input": inputs[0] if inputs else None,
        "output": outputs[0] if outputs else None,
        "varies": any(item != inputs[0] for item in inputs)
        or any(item != outputs[0] for item in outputs),
        "tensors": {item.name: type_to_text(item) for item in part.own_state},
        "parameters": holds.parameters,
        "own_parameters": sum(map(numel_of, own.values())),
        "trainable_parameters": holds.trainable,
        "shared_parameters": holds.shared,
        "share": holds.parameters / all_parameters if all_parameters else 0.0,
        "parameter_bytes": holds.parameter_bytes,
        "buffers": holds.buffers,
        "buffer_bytes": holds.buffer_bytes,
        **costs_row(costs),
    }


def costs_row(costs: Costs) -> Row:
    """Return costs as entries of a row, with None for FLOPs if none could be counted."""
    counted = costs.flops or costs.backward_flops or not costs.uncounted
    return {
        "flops": costs.flops if counted else None,
        "backward_flops": costs.backward_flops if counted else None,
        "uncounted": dict(costs.uncounted),
        "activation_bytes": costs.activation_bytes,
        "moved_bytes": costs.moved_bytes,
        "saved_bytes": costs.saved_bytes,
        "intensity": costs.intensity if counted else None,
        "duration_us": costs.duration_us,
    }


def add_rows(rows: list[Row]) -> Row:
    """Return the row of several equal parts: sums of figures, and other entries of the first."""
    total = dict(rows[0])
    shapes = total["input"], total["output"]
    total["varies"] = any(row["varies"] or (row["input"], row["output"]) != shapes for row in rows)
    for name in _SUMMED:
        figures = [row[name] for row in rows if row[name] is not None]
        total[name] = sum(figures) if figures else None
    counted = total["flops"] is not None and total["moved_bytes"]
    total["intensity"] = total["flops"] / total["moved_bytes"] if counted else None
    return total


def _shapes(nest: Nest, path: str) -> dict[str, Shape | None]:
    """Return the shape of each tensor in a pytree by its path: `logits`, `out.0`, `past.0.key`.

    The keys of an outermost dict are paths by themselves, as in the names of a graph's outputs.
    """
    prefix = "" if path == "out" and isinstance(nest, dict) else path
    return {
        path: entry.shape for path, entry in walk_nest(nest, prefix) if isinstance(entry, Value)
    }


# -- the lines below the table --------------------------------------------------------------


def _totals(graph: Graph, parts: Sequence[ModulePart], costs: Costs) -> Row:
    """Return the totals of a graph, under the keys of a row and four additional keys.

    The additional keys are: `unregistered_parameters`, `tied` for the names of tied parameters,
    `reasons` for the reason why a kernel has no FLOPs, and `profile` for `Graph.profile`.
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


def _tied(parts: Sequence[ModulePart]) -> list[tuple[str, ...]]:
    """Return the names of each parameter with several names."""
    names: dict[int | str, dict[str, None]] = {}
    for part in parts:
        if part.name is not None:
            for parameter in (*part.own_state, *part.borrowed):
                if parameter.kind == "parameter":
                    name = f"{part.name}.{parameter.name}".lstrip(".")
                    names.setdefault(parameter_key(part, parameter), {})[name] = None
    return [tuple(aliases) for aliases in names.values() if len(aliases) > 1]


def _footer(totals: Mapping[str, Any], *, parameters: bool) -> Iterator[tuple[str, str]]:
    """Yield the lines below the table, each with a title and a text."""
    if parameters:
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
        # The most frequent kernels come first; only rare reasons are printed.
        reasons = totals["reasons"]
        common = Counter(reasons.values()).most_common(1)[0][0] if reasons else ""
        texts = []
        for name, count in sorted(
            totals["uncounted"].items(), key=lambda item: (-item[1], item[0])
        ):
            why = reasons.get(name, common)
            texts.append(counted([(name, count)]) + (f" ({why})" if why != common else ""))
        yield "Not in FLOPs", first_of(texts, _MOST_NAMED)
    if totals["activation_bytes"]:
        yield "Activations", bytes_text(totals["activation_bytes"])
    if totals["duration_us"] is not None:
        text, profile = f"{duration_text(totals['duration_us'])} in operations", totals["profile"]
        if profile is not None:
            run = duration_text(profile.forward_us)
            text += f"; an unwatched run took {run} (median of {profile.steps})"
        yield "Time", text


# -- tallies ---------------------------------------------------------------------------------


def count_by_class(graph: Graph, summary: Summary) -> dict[str, object]:
    """Return counts of the nodes, calls, operations and classes of a graph.

    Args:
        graph: A graph as recorded.
        summary: Its summary.
    Returns:
        Plain data: the number of `nodes` of each kind (leaf modules are "op") and of `calls`, the
        `depth` of the module tree, the `totals`, and a row for each of the `ops` and `classes`, the
        most frequent first.
    """
    costs: dict[str, Costs] = defaultdict(Costs)
    for node, cost in node_costs(graph).items():
        costs[node.op].add(cost)
    modules = [row for row in summary.rows if row["class"]]
    # `Costs.operations` of a node is 1, so the sum is the number of operations.
    ops = [
        {"op": op, "count": cost.operations, **_plain(costs_row(cost))}
        for op, cost in costs.items()
    ]
    classes: dict[str, Row] = {}
    for row in modules:
        new = {"class": row["class"], "modules": 0, "calls": 0, "own_parameters": 0}
        row_of_class = classes.setdefault(row["class"], new)
        row_of_class["modules"] += 1
        row_of_class["calls"] += row["calls"]
        row_of_class["own_parameters"] += row["own_parameters"]
    return {
        "nodes": Counter("op" if node.kind == "module" else node.kind for node in graph.nodes),
        "calls": len(graph.calls),
        "depth": 1 + max((row["depth"] for row in modules), default=-1),
        "totals": _plain(summary.totals),
        "ops": sorted(ops, key=lambda row: (-row["count"], row["op"])),
        "classes": sorted(classes.values(), key=lambda row: (-row["modules"], row["class"])),
    }


def _plain(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in _LEFT_OUT}
