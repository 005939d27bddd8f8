"""Copy of a rank's graph for the merged graph: put into boxes, with the ranks in its devices.

A training step of several ranks is drawn as a sequence of phases, like the step of one rank:
each rank's forward pass, then `gradients` and `optimizer` with a box of each rank inside. A single
box around all phases of a rank would form a cycle: it would read the message that another rank
sends in the backward pass, and feed that rank in the forward pass.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tbscope.ir.call_blocks import block_property
from tbscope.ir.graph import Argument, Call, Graph, Node, Parameter, Value
from tbscope.ir.metadata import device_on, ranks_text
from tbscope.ir.pytree import map_tree
from tbscope.ir.scopes import NearestProperty, Phase, Scope, ScopePart, self_and_ancestors


class RankCopy:
    """Copy of a graph that represents one or several ranks in a merged graph.

    Args:
        graph: The graph recorded by one of these ranks; it is not changed.
        ranks: The ranks.
        box: Name of the boxes for the copy, one in each phase of a training step; None for no box.
        number: First number for the copy's parameters and buffers.
        phases: Boxes of the phases (`gradients`) by their scope parts, shared by all copies; new
            phases are added.
        box_of: Names of the boxes of operations, for ranks with several stages of a pipeline.
        shared: The number of leading nodes that all ranks have in common, outside of all boxes.

    Attributes:
        shared: The leading nodes that all ranks have in common.
        common: The scopes around these nodes.
        graph: The copy.
        numbers: The ranks.
        ranks: The ranks as text.
        box: The box of the forward pass.
        next_number: One more than the highest number of the copy's parameters and buffers.
    """

    def __init__(
        self,
        graph: Graph,
        ranks: Sequence[int],
        box: str | None,
        number: int,
        phases: dict[ScopePart, Scope],
        box_of: Mapping[Node, str],
        shared: int,
    ) -> None:
        self.numbers = ranks
        self.ranks = ranks_text(ranks)
        self.box = None if box is None else Scope(ScopePart(box), kind="rank")
        self.next_number = self._number = number
        self._phases = phases
        # Boxes, and copies of the scopes in them, by the name of the box.
        self._scopes: dict[tuple[Scope | None, str], Scope] = {}
        if self.box is not None:
            self._scopes[None, self.box.part.label] = self.box
        # The names of the boxes of calls and their gradients, and of operations outside of these.
        self._box_of: dict[Scope | Node, str] = {}
        # Boxes of this copy, with their indices in the order of phases.
        self._boxes: dict[Scope | None, int] = {self.box: 0}
        self._box_around = NearestProperty[Scope](
            lambda scope: scope if scope in self._boxes else None
        )
        self._block_of = block_property()
        self.graph = graph.copy()
        for node, copy in zip(graph.nodes, self.graph.nodes, strict=True) if box_of else ():
            if node in box_of:
                self._box_of[self._block_of(node.scope) or copy] = box_of[node]
        self.shared = self.graph.nodes[:shared]
        self.common = {each for node in self.shared for each in self_and_ancestors(node.scope)}
        outside = [(node, node.scope) for node in self.shared]
        self._place(self.graph.nodes)
        for node, scope in outside:
            node.scope = scope
        self.graph.calls = [self._call(call) for call in self.graph.calls]
        self.graph.outputs = [
            replace(output, given=self._value(output.given)) for output in self.graph.outputs
        ]
        self.graph.modules = [
            module._replace(
                parameters=self._owned(module.parameters), borrowed=self._owned(module.borrowed)
            )
            for module in self.graph.modules
        ]

    def _scope_of(self, scope: Scope) -> Scope:
        """Return the copy of a scope, in the box of its stage."""
        block = self._block_of(scope)
        return self._copied(scope, None if block is None else self._box_of.get(block)) or scope

    def _copied(self, scope: Scope | None, name: str | None) -> Scope | None:
        """Return the copy of a scope, or of the top level, in a box of these ranks.

        Args:
            scope: A scope; in the box of a phase is a box of the ranks.
            name: The name of the box of the ranks; None for the first.
        """
        if self.box is None or scope in self.common:
            return scope
        name = name or self.box.part.label
        is_phase = scope is not None and scope.parent is None and scope.phase != "forward"
        if is_phase and scope is not None and scope.phase == "optimizer" and self._box_of:
            # One optimizer changes the parameters of all stages.
            name = self.ranks
        key = scope, name
        if key not in self._scopes:
            if scope is not None and not is_phase:
                own = scope.like(scope.part, self._copied(scope.parent, name))
            else:
                outer: Scope | None = None
                phase: Phase = "forward"
                if scope is not None:
                    outer = self._phases.setdefault(scope.part, scope.like(scope.part, None))
                    phase = scope.phase
                own = Scope(ScopePart(name), parent=outer, kind="rank", phase=phase)
                self._boxes[own] = len(self._boxes)
            self._scopes[key] = own
        return self._scopes[key]

    def _place(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.kind != "input":
                node.scope = self._around(node)
            for value in node.outputs:
                value.device = self._device(value.device)
            if node.body is not None:
                self._place(node.body.nodes)

    def _around(self, node: Node) -> Scope | None:
        """Return the scope of a node; a node without scope goes to the last box among its inputs'.

        The operation that scales the gradients of all micro batches has no scope: it follows all
        modules, and no module reads it.
        """
        scope = node.scope
        if node in self._box_of:
            return self._copied(scope, self._box_of[node])
        if scope is not None:
            return self._scope_of(scope)
        boxes = {self._box_around(value.producer.scope) for value in node.inputs} - {None}
        return max(boxes, key=self._boxes.__getitem__, default=self.box)

    def _device(self, device: str) -> str:
        return device if device.startswith(f"{self.ranks} ") else device_on(self.ranks, device)

    def _value(self, nest: object) -> Any:
        """Return a value with these ranks as its device; other objects are returned unchanged.

        A value without a node in the graph gets a new device, too.
        """
        if not isinstance(nest, Value) or nest.device == self._device(nest.device):
            return nest
        return replace(nest, device=self._device(nest.device))

    def _call(self, call: Call) -> Call:
        return replace(
            call,
            scope=self._scope_of(call.scope),
            caller=call.caller and self._scope_of(call.caller),
            arguments=[
                Argument(name, map_tree(nest, self._value)) for name, nest in call.arguments
            ],
            results=map_tree(call.results, self._value),
            parameters=self._owned(call.parameters),
        )

    def _owned(self, parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
        owned = []
        for parameter in parameters:
            number = parameter.number if parameter.number < 0 else parameter.number + self._number
            self.next_number = max(self.next_number, number + 1)
            owned.append(parameter._replace(device=self._device(parameter.device), number=number))
        return tuple(owned)
