"""Graphs of what was captured: one of each captured graph, and one of all."""

from collections.abc import Sequence
from typing import Any

from tbscope.ir.graph import Graph, Node, Note
from tbscope.sources.compiled.capture import Capture, Captured
from tbscope.sources.compiled.copies import Given
from tbscope.sources.compiled.names import Names
from tbscope.sources.compiled.reading import Reading, flat
from tbscope.sources.compiled.results import CompiledGraphs, GraphBreak
from tbscope.sources.compiled.stages import Lowered
from tbscope.sources.programs.slots import Slot
from tbscope.sources.programs.types import UNKNOWN, TensorType

__all__ = ["graphs_of", "is_whole"]


def graphs_of(
    capture: Capture,
    title: str,
    results: Sequence[tuple[str, Any]] = (),
    *,
    dynamo: bool = True,
) -> CompiledGraphs:
    """Return the graphs that were captured.

    Args:
        capture: What took them down.
        title: What they are of, where that is a function.
        results: What the model gave, by path, with its type.
        dynamo: Whether the graphs are wanted as they were captured; else only later stages.
    """
    names = capture.names or Names(None)
    overview = _Overview(capture, names, title).graph(results)
    graphs: dict[str, Graph] = {}
    recompiled: dict[str, str] = {}
    for captured in capture.graphs:
        own = _title(captured)
        if dynamo:
            whole = is_whole(capture)
            graphs[own] = (
                overview if whole else _graph(names, title, captured, captured, captured.outputs)
            )
            if captured.recompiled:
                recompiled[own] = captured.recompiled
        for lowered in captured.lowered:
            paths = _paths(captured, lowered)
            graphs[f"{own}, {lowered.stage}"] = _graph(names, title, captured, lowered, paths)
    breaks = [event for event in capture.events if isinstance(event, GraphBreak)]
    return CompiledGraphs(overview, graphs, breaks, recompiled)


def is_whole(capture: Capture) -> bool:
    """Tell whether one graph, run once, is all that was captured."""
    graphs = capture.graphs
    return len(capture.events) == len(graphs) == 1 and graphs[0].runs <= 1


def _title(captured: Captured) -> str:
    return f"{captured.number} {captured.function}"


def _box(captured: Captured) -> str:
    """Return what its box is called: a dot would be the end of a name in a path."""
    return _title(captured).replace(".", " ")


def _notes(captured: Captured) -> list[Note]:
    owner = f" of {captured.owner}" if captured.owner else ""
    often = "" if captured.runs == 1 else f"; it ran {captured.runs:,} times"
    notes = [
        Note(
            f"graph {captured.number} is compiled from {captured.function}{owner}{often}",
            captured.source,
        )
    ]
    if captured.recompiled:
        notes.append(Note(f"graph {captured.number} was compiled again: {captured.recompiled}"))
    return notes


def _graph(
    names: Names,
    title: str,
    captured: Captured,
    part: Captured | Lowered,
    paths: Sequence[str | None],
) -> Graph:
    """Return the graph of what was captured, or of a later stage of it.

    Args:
        names: The names in the model.
        title: What it is of, where that is a function.
        captured: What was captured.
        part: The nodes, and what they take: its own, or those of a stage.
        paths: The names of what it gives.
    """
    reading = Reading(names, title, part.given)
    given = [
        reading.add_input(each.name, each.type) if each.kind == "input" else reading.held(each)
        for each in part.given
    ]
    held = list(flat(reading.read(part.module, given)))
    graph = reading.finish(_outputs(held, paths), whole=False)
    graph.notes[:0] = _notes(captured)
    return graph


def _paths(captured: Captured, lowered: Lowered) -> list[str | None]:
    """Return the names of what a stage gives: of a result, those in the model's result."""
    paths: list[str | None] = []
    for name in lowered.outputs:
        if isinstance(name, str):
            paths.append(name)
        else:
            known = captured.outputs[name] if name < len(captured.outputs) else None
            paths.append(known or f"out.{name}")
    return paths


def _outputs(
    held: Sequence[tuple[int, Slot]], paths: Sequence[str | None]
) -> list[tuple[str, Slot]]:
    alone = len(held) == 1
    found = []
    for place, slot in held:
        path = paths[place] if place < len(paths) else None
        found.append((path or ("out" if alone else f"out.{place}"), slot))
    return found


class _Overview:
    """The graph of all that was captured: a box for each graph, with the breaks between them."""

    def __init__(self, capture: Capture, names: Names, title: str) -> None:
        given = [each for captured in capture.graphs for each in captured.given]
        self._capture = capture
        self._reading = Reading(names, title, given)
        self._whole = is_whole(capture)
        self._inputs: dict[str, Slot] = {}
        self._gave: dict[tuple[int, int], Slot] = {}
        # What the latest graph gave, what Python ran behind it, and its latest node.
        self._loose: list[Slot] | None = None
        self._gaps: list[GraphBreak] = []
        self._last: Node | None = None

    def graph(self, results: Sequence[tuple[str, Any]]) -> Graph:
        """Return the graph of all.

        Args:
            results: What the model gave, by path, with its type.
        """
        outputs: dict[str, Slot] = {}
        notes: list[Note] = []
        for event in self._capture.events:
            if isinstance(event, GraphBreak):
                self._gaps.append(event)
                continue
            notes += _notes(event)
            held = list(flat(self._read(event)))
            self._loose = [slot for _, slot in held]
            for place, slot in held:
                self._gave.setdefault((event.number, place), slot)
            paths = event.outputs
            if not self._whole:
                held = [
                    (place, slot) for place, slot in held if place < len(paths) and paths[place]
                ]
            outputs.update(_outputs(held, paths))
        for path, name in self._capture.passed.items():
            outputs[path] = self._input(name, self._capture.inputs[name])
        rest = [(path, told) for path, told in results if path not in outputs]
        if self._gaps or rest:
            slots = self._in_python([told for _, told in rest])
            outputs.update((path, slot) for (path, _), slot in zip(rest, slots, strict=True))
        if not self._capture.alone and not self._whole:
            outputs |= self._unread()
        order = {path: at for at, (path, _) in enumerate(results)}
        named = sorted(outputs.items(), key=lambda pair: order.get(pair[0], len(order)))
        graph = self._reading.finish(named, whole=self._whole)
        graph.notes[:0] = notes
        return graph

    def _read(self, captured: Captured) -> list[Any]:
        reading = self._reading
        given = [self._known(captured, at, each) for at, each in enumerate(captured.given)]
        unknown = [at for at, slot in enumerate(given) if slot is None]
        told = [_type(captured.given[at]) for at in unknown]
        between = bool(self._gaps)
        if between or (unknown and self._capture.alone):
            slots, between = self._in_python(told), True
        else:
            pairs = zip(unknown, told, strict=True)
            slots = [reading.add_input(captured.given[at].name, one) for at, one in pairs]
        for at, slot in zip(unknown, slots, strict=True):
            given[at] = slot
        before = len(reading.builder.graph.nodes)
        held = reading.read(captured.module, given, None if self._whole else _box(captured))
        if between:
            self._wait(reading.builder.graph.nodes[before:])
        return held

    def _unread(self) -> dict[str, Slot]:
        """Return what no later graph reads, where nobody told of the results of the whole."""
        nodes = self._reading.builder.graph.nodes
        read = {value for node in nodes for value in node.inputs}
        return {
            f"{number}.out.{place}": slot
            for (number, place), slot in self._gave.items()
            if slot.read() not in read
        }

    def _wait(self, nodes: Sequence[Node]) -> None:
        """Have the first operation of a graph wait for what Python ran before it."""
        first = next((node for node in nodes if node.kind == "op"), None)
        if first is None or self._last is None:
            return
        if all(value.producer is not self._last for value in first.inputs):
            first.control_inputs.append(self._last)

    def _known(self, captured: Captured, at: int, each: Given) -> Any:
        """Return what a graph is given; None for an input of which nobody knows whence it comes."""
        if each.kind != "input":
            return self._reading.held(each)
        origin = captured.origins[at] if at < len(captured.origins) else None
        if origin is None:
            return None
        if origin.graph is not None:
            return self._gave.get((origin.graph, origin.place))
        return self._input(origin.path, each.type)

    def _input(self, path: str, told: Any) -> Slot:
        slot = self._inputs.get(path)
        if slot is None:
            slot = self._inputs[path] = self._reading.add_input(path, told)
        return slot

    def _in_python(self, told: Sequence[TensorType]) -> list[Slot]:
        """Append what ran in Python since the latest graph; return what it gives.

        It is a node for each break, or one where the compiler told of none: what was not
        compiled at all.
        """
        read = self._loose
        if read is None:
            read = [self._input(path, one) for path, one in self._capture.inputs.items()]
        slots: list[Slot] = []
        gaps: list[GraphBreak | None] = [*self._gaps]
        for number, gap in enumerate(gaps or [None]):
            attributes = {}
            if gap is not None:
                attributes["reason"] = gap.reason
                if gap.skipped:
                    attributes["not_compiled"] = gap.skipped
            self._last, slots = self._reading.append(
                "python" if gap is None else "graph_break",
                read if number == 0 else [],
                told if number == max(len(gaps), 1) - 1 else [],
                None if gap is None else gap.source,
                attributes,
                self._last,
            )
        self._gaps = []
        return slots


def _type(given: Given) -> TensorType:
    return given.type if isinstance(given.type, TensorType) else UNKNOWN
