"""Reading: turns one captured graph, in one of its stages, into a part of a graph of ours."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Constant, Graph, Node, Source, Value
from tbscope.ir.scopes import Scope
from tbscope.sources.compiled.copies import BACKWARD, BOX, KERNEL, Given
from tbscope.sources.compiled.names import Names
from tbscope.sources.programs.graph_modules import Parts, hyperparameters_of
from tbscope.sources.programs.places import Places, class_name_of
from tbscope.sources.programs.reader import ProgramNode, Reader
from tbscope.sources.programs.slots import Held as HeldNest
from tbscope.sources.programs.slots import Slot, slots_in
from tbscope.sources.programs.state import State
from tbscope.sources.programs.types import UNKNOWN, TensorType
from tbscope.sources.torch.holders import container_class

__all__ = ["Reading"]


class Reading:
    """A graph of ours while captured graphs are read into it.

    Args:
        names: The names in the model.
        title: What the graph is of, where the model is a function.
        given: All that the captured graphs take.

    Attributes:
        builder: The door to the graph.
        reader: Reads the nodes of captured graphs.
        root: The scope of the model.
    """

    def __init__(self, names: Names, title: str, given: Sequence[Given]) -> None:
        self._modules = names.modules()
        root = names.root
        label = type(root).__name__ if root is not None else title
        self.builder = GraphBuilder(label)
        self._places = _FramePlaces(self.builder, self._class_of, self._modules)
        if root is not None:
            self._places.open_root(class_name_of(type(root)))
        else:
            self._places.root = self.builder.new_scope(label, parent=None, kind="hand")
        self.reader = _Reader(self.builder, self._places)
        kinds, tensors = names.state()
        for each in given:
            if each.tensor is not None:
                tensors[each.name] = each.tensor
                if each.kind != "constant":
                    kinds[each.name] = each.kind
        self.state = State(self.reader, kinds, tensors)

    @property
    def root(self) -> Scope:
        """The scope of the model."""
        root = self._places.root
        assert root is not None
        return root

    def _class_of(self, name: str) -> str:
        module = self._modules.get(name)
        return (
            container_class(self._modules, name) if module is None else class_name_of(type(module))
        )

    def add_input(self, name: str, told: Any) -> Slot:
        """Add an input of the model."""
        typed = told if isinstance(told, TensorType) else UNKNOWN
        return Slot(typed, self.reader.add_source("input", name, typed))

    def held(self, given: Given) -> HeldNest:
        """Return what a captured graph is given that is no input: state, or a number."""
        if given.kind == "number":
            return given.type if given.type is not None else Constant(given.name)
        if given.kind == "constant":
            return self.state.constant(given.name, given.type)
        return self.state.slot(given.name, given.type)

    def read(
        self, module: torch.fx.GraphModule, given: Sequence[HeldNest], box: str | None = None
    ) -> list[HeldNest]:
        """Read the nodes of a captured graph; return what it gives.

        Args:
            module: The nodes.
            given: What it takes, in order.
            box: The scope in which it stands; None for that of the model.
        """
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.reader.held.update(zip(places, given, strict=True))
        parts = Parts(self.reader, self.state)
        if box is None:
            return parts.read(module)
        with self._places.body(box, self.root):
            return parts.read(module)

    def append(
        self,
        name: str,
        slots: Sequence[Slot],
        told: Sequence[TensorType],
        source: Source | None,
        attributes: Mapping[str, Any],
        after: Node | None,
    ) -> tuple[Node, list[Slot]]:
        """Append what stands for Python between two graphs; return it, and what it gives."""
        values = [slot.read() for slot in slots]
        waits = [after] if after is not None and after not in {v.producer for v in values} else []
        node = self.builder.append_op(
            name, self.root, values, [Argument(None, value) for value in values], waits, source, []
        )
        node.attributes.update(attributes)
        return node, [
            Slot(typed, self.reader.value_of(node, typed), at=len(self.builder.graph.nodes))
            for typed in told
        ]

    def finish(self, outputs: Sequence[tuple[str, Slot]], *, whole: bool) -> Graph:
        """Return the graph.

        Args:
            outputs: What the model gives, by path.
            whole: Whether all that ran is in it.
        """
        self._describe_calls(outputs)
        return self.state.finish(outputs, self._modules, self._class_of, whole=whole)

    def _describe_calls(self, outputs: Sequence[tuple[str, Slot]]) -> None:
        for call in self.builder.graph.calls:
            module = self._modules.get(call.qualified_name or "")
            if call.qualified_name is not None and module is not None:
                call.training = module.training
                call.hyperparameters = hyperparameters_of(module)
        root = self._places.call_of.get(self.root)
        if root is not None:
            root.arguments = [
                Argument(node.name, node.outputs[0]) for node in self.builder.graph.inputs
            ]
            results = tuple([slot.read() for _, slot in outputs])
            root.results = results[0] if len(results) == 1 else results or None


class _FramePlaces(Places):
    """The scopes of captured graphs: a kernel is a box, in which modules stand."""

    def __init__(
        self,
        builder: GraphBuilder,
        container_class: Callable[[str], str],
        modules: Collection[str],
    ) -> None:
        super().__init__(builder, container_class)
        self._modules = modules
        self._boxes: dict[tuple[Scope | None, str], Scope] = {}
        # The first scope of each module in a box.
        self._boxed: dict[str, Scope] = {}

    def scope_of(self, stack: Mapping[str, Any] | None, source: Source | None) -> Scope | None:
        """Return the scope of a node, in that of its box."""
        key = next(iter(stack or ()), "")
        if stack is None or not key.startswith(BOX):
            return super().scope_of(stack, source)
        around = super().scope_of({}, None)
        label = key.removeprefix(BOX)
        box = self._boxes.get((around, label))
        if box is None:
            box = self._boxes[around, label] = self._builder.new_scope(
                label, parent=around, kind="hand"
            )
        rest = {name: entry for name, entry in stack.items() if name != key}
        with self.inside(self.root, box):
            # Tensors stand where the forward pass reads them, also where it comes later.
            first, self._first = self._first, self._boxed
            try:
                return super().scope_of(rest, source)
            finally:
                self._first = first

    def home(self, name: str) -> Scope | None:
        """Return the scope in which the tensors of a module stand, or what a variable leads to."""
        known = (self._modules, self._first, self._boxed)
        while name and not any(name in each for each in known):
            name = name.rpartition(".")[0]
        return self._first.get(name) or self._boxed.get(name) or super().home(name)


class _Reader(Reader):
    """Reads nodes, and tells which run in the backward pass, and in which kernels."""

    def append(self, name: str, fx_node: ProgramNode, *args: Any) -> Node:
        """Append an operation."""
        node = super().append(name, fx_node, *args)
        if fx_node.meta.get(BACKWARD):
            node.phase = "backward"
        kernels = fx_node.meta.get(KERNEL) or ()
        if len(kernels) > 1:
            node.attributes["also_in"] = ", ".join(kernels[1:])
        return node

    def value_of(self, node: Node, typed: TensorType) -> Value:
        """Add a value to a node."""
        return self._give(node, typed)


def flat(held: Sequence[HeldNest]) -> Iterator[tuple[int, Slot]]:
    """Yield the tensors that a captured graph gives, with their places."""
    for place, entry in enumerate(held):
        for slot in slots_in(entry):
            yield place, slot
