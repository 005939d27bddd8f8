"""Graphs of a capture: one for each captured graph, and an overview of all of them."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import torch

from tbscope.ir.graph import Argument, Constant, Graph, Node, Note
from tbscope.ir.scopes import Scope
from tbscope.sources.compiled.capture import Capture, CapturedGraph, GraphInput, ModelNames, Origin
from tbscope.sources.compiled.results import CompiledGraphs, GraphBreak
from tbscope.sources.fx.aliasing import Content, Slot, slots_in, types_of_metadata
from tbscope.sources.fx.reader import Reader
from tbscope.sources.fx.scopes import ProgramScopes, State, class_name_of
from tbscope.sources.fx.tensor_types import UNKNOWN, TensorType
from tbscope.sources.fx.walk import Walk, class_in, hyperparameters_of


def graphs_of(
    capture: Capture, title: str, results: Sequence[tuple[str, torch.Tensor]] = ()
) -> CompiledGraphs:
    """Return the graphs of a capture.

    Args:
        capture: The capture.
        title: The name of the model, if it is a function.
        results: The tensors in the model's result, by path.
    """
    names = capture.names
    assert names is not None
    reading = _Overview(capture, names, title)
    overview = reading.graph(results)
    graphs = {
        _title(captured): overview if reading.whole else _graph(names, title, captured)
        for captured in capture.graphs
    }
    recompiled = {
        _title(captured): captured.recompiled for captured in capture.graphs if captured.recompiled
    }
    breaks = [event for event in capture.events if isinstance(event, GraphBreak)]
    return CompiledGraphs(overview, graphs, breaks, recompiled)


def _title(captured: CapturedGraph) -> str:
    return f"{captured.number} {captured.function}"


def _notes(captured: CapturedGraph) -> list[Note]:
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


def _graph(names: ModelNames, title: str, captured: CapturedGraph) -> Graph:
    """Return the graph of one captured graph."""
    reading = CaptureConverter(names, title, captured.inputs)
    inputs = [
        reading.add_input(each.name, each.type)
        if each.kind == "input"
        else reading.content_of(each)
        for each in captured.inputs
    ]
    outputs = reading.read(captured.module, inputs)
    graph = reading.finish(_outputs(outputs, captured.outputs), whole=False)
    graph.notes[:0] = _notes(captured)
    return graph


def _outputs(
    slots: Sequence[tuple[int, Slot]], paths: Sequence[str | None]
) -> list[tuple[str, Slot]]:
    is_single = len(slots) == 1
    path_of = dict(enumerate(paths))
    return [
        (path_of.get(index) or ("out" if is_single else f"out.{index}"), slot)
        for index, slot in slots
    ]


class _Overview:
    """Overview of a capture: a box for each graph, with the breaks between them.

    Attributes:
        whole: Whether the capture is a single graph without breaks, which ran at most once.
    """

    def __init__(self, capture: Capture, names: ModelNames, title: str) -> None:
        graphs = capture.graphs
        inputs = [each for captured in graphs for each in captured.inputs]
        self._capture = capture
        self._reading = CaptureConverter(names, title, inputs)
        self.whole = len(capture.events) == len(graphs) == 1 and graphs[0].runs <= 1
        # An input has the type that the first graph that reads it records: its sizes are symbolic.
        types = {
            origin: each.type
            for captured in reversed(graphs)
            for origin, each in zip(captured.origins, captured.inputs, strict=False)
            if origin in capture.inputs and isinstance(each.type, TensorType)
        }
        # The inputs of the model, and the outputs of graphs.
        self._slots: dict[Origin, Slot] = {}
        for path, typed in capture.inputs.items():
            slot = self._slots[path] = self._reading.add_input(path, types.get(path, typed))
            if path in capture.also:
                slot.read().producer.attributes["also"] = ", ".join(capture.also[path])
        # The results of the latest graph, the breaks behind it, and the latest node of Python code.
        self._loose: list[Slot] | None = None
        self._gaps: list[GraphBreak] = []
        self._last: Node | None = None

    def graph(self, results: Sequence[tuple[str, torch.Tensor]]) -> Graph:
        """Return the overview.

        Args:
            results: The tensors in the model's result, by path.
        """
        tensors: list[tuple[int, Slot]] = []
        notes: list[Note] = []
        for event in self._capture.events:
            if isinstance(event, GraphBreak):
                self._gaps.append(event)
                continue
            notes += _notes(event)
            tensors = self._read(event)
            self._loose = [slot for _, slot in tensors]
            for index, slot in tensors:
                self._slots.setdefault((event.number, index), slot)
        if self._capture.alone:
            origins = self._capture.results.items()
            outputs = {
                path: self._slots[origin] for path, origin in origins if origin in self._slots
            }
        else:
            outputs = dict(_outputs(tensors, ())) if self.whole else self._unread()
        state = self._reading.reader.state
        for path, tensor in results:
            if path not in outputs and (name := state.name_of(tensor)):
                outputs[path] = state.slot(name)
        rest = [(path, tensor) for path, tensor in results if path not in outputs]
        if self._gaps or rest:
            slots = self._in_python([types_of_metadata(tensor) for _, tensor in rest])
            outputs.update((path, slot) for (path, _), slot in zip(rest, slots, strict=True))
        order = {path: position for position, (path, _) in enumerate(results)}
        named = sorted(outputs.items(), key=lambda pair: order.get(pair[0], len(order)))
        graph = self._reading.finish(named, whole=self.whole)
        graph.notes[:0] = notes
        return graph

    def _read(self, captured: CapturedGraph) -> list[tuple[int, Slot]]:
        reading = self._reading
        values = [self._known(captured, index, each) for index, each in enumerate(captured.inputs)]
        missing = [index for index, slot in enumerate(values) if slot is None]
        types = [captured.inputs[index].type for index in missing]
        after_python = self._gaps or (missing and self._capture.alone)
        if after_python:
            slots = self._in_python(types)
        else:
            pairs = zip(missing, types, strict=True)
            slots = [
                reading.add_input(captured.inputs[index].name, typed) for index, typed in pairs
            ]
        for index, slot in zip(missing, slots, strict=True):
            values[index] = slot
        nodes = reading.reader.graph.nodes
        before = len(nodes)
        # A dot in the name of a box would end the name in a path.
        box = None if self.whole else _title(captured).replace(".", " ")
        tensors = reading.read(captured.module, values, box)
        if after_python:
            self._wait(nodes[before:])
        return tensors

    def _unread(self) -> dict[str, Slot]:
        """Return the outputs that no later graph reads, if the model's results are unrecorded."""
        nodes = self._reading.reader.graph.nodes
        read = {value for node in nodes for value in node.inputs}
        return {
            f"{origin[0]}.out.{origin[1]}": slot
            for origin, slot in self._slots.items()
            if slot.read() not in read
        }

    def _wait(self, nodes: Sequence[Node]) -> None:
        """Add a control dependency of the first operation on the latest node of Python code."""
        first = next((node for node in nodes if node.kind == "op"), None)
        if first is None or self._last is None:
            return
        if all(value.producer is not self._last for value in first.inputs):
            first.control_inputs.append(self._last)

    def _known(self, captured: CapturedGraph, at: int, each: GraphInput) -> Content:
        """Return the value for an input of a graph, or None for an input of unknown origin."""
        if each.kind != "input":
            return self._reading.content_of(each)
        origin = captured.origins[at] if at < len(captured.origins) else None
        return None if origin is None else self._slots.get(origin)

    def _in_python(self, examples: Sequence[object]) -> list[Slot]:
        """Append the Python code that ran since the latest graph; return its results.

        The code is a node for each break, or a single node if the compiler reported no break: then
        nothing of it was compiled.
        """
        read = [*self._slots.values()] if self._loose is None else self._loose
        reader, slots = self._reading.reader, []
        gaps: list[GraphBreak | None] = [*self._gaps] or [None]
        for number, gap in enumerate(gaps):
            values = [slot.read() for slot in read] if number == 0 else []
            node = reader.builder.append_op(
                "python" if gap is None else "graph_break",
                self._reading.root,
                values,
                [Argument(None, value) for value in values],
                [],
                None if gap is None else gap.source,
                [],
            )
            if gap is not None:
                node.attributes["reason"] = gap.reason
                if gap.skipped:
                    node.attributes["not_compiled"] = gap.skipped
            self._wait([node])
            self._last = node
            slots = reader.add_outputs(node, list(map(_typed, examples)) if gap is gaps[-1] else [])
        self._gaps = []
        return slots


def _typed(example: object) -> TensorType:
    return example if isinstance(example, TensorType) else UNKNOWN


class CaptureConverter:
    """Graph to which the nodes of captured graphs are added.

    Args:
        names: The names in the model.
        title: The name of the model, if it is a function.
        given: The inputs of all captured graphs.

    Attributes:
        reader: The reader of the nodes of captured graphs.
        root: The scope of the model.
    """

    def __init__(self, names: ModelNames, title: str, inputs: Sequence[GraphInput]) -> None:
        self._modules = names.modules()
        root = names.root
        label = type(root).__name__ if root is not None else title
        places = _FrameScopes(label, self._modules)
        if root is not None:
            places.open_root(class_name_of(type(root)))
        else:
            places.root = places.builder.new_scope(label, parent=None, kind="hand")
        self.root = places.root
        kinds, tensors = names.state()
        for each in inputs:
            if each.tensor is not None:
                tensors[each.name] = each.tensor
                if each.kind != "constant":
                    kinds[each.name] = each.kind
        self.reader = Reader(State(places, kinds, tensors))

    def add_input(self, name: str, example: object) -> Slot:
        """Add an input of the model."""
        typed = _typed(example)
        return Slot(typed, self.reader.state.add_source("input", name, typed))

    def content_of(self, graph_input: GraphInput) -> Content:
        """Return the value of an input that is state or a number."""
        if graph_input.kind == "number":
            return graph_input.type if graph_input.type is not None else Constant(graph_input.name)
        return self.reader.state.slot(graph_input.name, graph_input.type)

    def read(
        self, module: torch.fx.GraphModule, inputs: Sequence[Content], box: str | None = None
    ) -> list[tuple[int, Slot]]:
        """Read the nodes of a captured graph; return its output tensors with their positions.

        Args:
            module: The nodes.
            inputs: The inputs, in order.
            box: The name of a box for the nodes, or None for the scope of the model.
        """
        reader = self.reader
        placeholders = module.graph.find_nodes(op="placeholder")
        reader.results.update(zip(placeholders, inputs, strict=True))
        with reader.places.body(box, self.root) if box else nullcontext():
            results = Walk(reader, runs=True).read(module)
        return [(index, slot) for index, entry in enumerate(results) for slot in slots_in(entry)]

    def finish(self, outputs: Sequence[tuple[str, Slot]], *, whole: bool) -> Graph:
        """Return the graph.

        Args:
            outputs: The results of the model, by path.
            whole: Whether the graph contains all that ran.
        """
        graph, places = self.reader.graph, self.reader.places
        for call in graph.calls:
            module = self._modules.get(call.qualified_name or "")
            if module is not None:
                call.training = module.training
                call.hyperparameters = hyperparameters_of(module)
        root = places.call_of.get(self.root)
        if root is not None:
            root.arguments = [Argument(node.name, node.outputs[0]) for node in graph.inputs]
        results = tuple([slot for _, slot in outputs])
        result = results[0] if len(results) == 1 else results or None
        return self.reader.finish(outputs, result, self._modules, whole=whole)


class _FrameScopes(ProgramScopes):
    """Scopes of captured graphs."""

    def __init__(self, label: str, modules: Mapping[str, torch.nn.Module]) -> None:
        super().__init__(label, partial(class_in, modules))
        self._modules = modules

    def scope_of_module(self, name: str) -> Scope | None:
        """Return the scope of a module's tensors, or of the nearest module on a variable's path."""
        while name and name not in self._modules and name not in self._first:
            name = name.rpartition(".")[0]
        return super().scope_of_module(name)
