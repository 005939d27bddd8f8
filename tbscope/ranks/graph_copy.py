"""Copies the graph of a rank into a merged one: in boxes, and with the ranks in its devices.

A training step of several ranks is drawn as that of one is, in a row: what each ran in the forward
pass, then `gradients` and `optimizer` with a box of each rank in them. One box around all of a
rank would read what another rank sends in the backward pass, and feed it in the forward pass.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tbscope.ir.graph import Argument, Call, Graph, Node, Parameter, Value
from tbscope.ir.metadata import device_on, ranks_text
from tbscope.ir.pytree import map_nest
from tbscope.ir.scopes import Nearest, Scope, ScopePart

__all__ = ["RankCopy"]


class RankCopy:
    """The copy of a graph that stands for one or several ranks in a merged one.

    Args:
        graph: The graph as one of these ranks recorded it; it stays as it is.
        ranks: The ranks.
        box: What the box is called in which all of it stands, in each phase of a training step;
            None for no box.
        number: The lowest number for its parameters and buffers.
        phases: The boxes of phases (`gradients`) that all copies share, by their names; filled.

    Attributes:
        graph: The copy.
        numbers: The ranks.
        ranks: The ranks in words.
        box: The box of the forward pass.
        next_number: One more than the highest number of its parameters and buffers.
    """

    def __init__(
        self,
        graph: Graph,
        ranks: Sequence[int],
        box: str | None = None,
        number: int = 0,
        phases: dict[ScopePart, Scope] | None = None,
    ) -> None:
        self.numbers = ranks
        self.ranks = ranks_text(ranks)
        self.box = None if box is None else Scope(ScopePart(box), kind="rank")
        self.next_number = self._number = number
        self._scopes: dict[Scope, Scope] = {}
        # The boxes of this copy, with their places in the order of phases.
        self._boxes: dict[Scope | None, int] = {self.box: 0}
        self._box_around = Nearest[Scope](lambda one: one if one in self._boxes else None)
        self.graph = graph.copy()
        if self.box is not None:
            self._add_scopes(self.graph.scopes(), self.box, {} if phases is None else phases)
        self._place(self.graph.nodes)
        self.graph.calls = [self._call(call) for call in self.graph.calls]
        self.graph.outputs = [
            replace(output, given=self._value(output.given)) for output in self.graph.outputs
        ]
        self.graph.modules = [
            one._replace(parameters=self._owned(one.parameters), borrowed=self._owned(one.borrowed))
            for one in self.graph.modules
        ]

    def _add_scopes(
        self, scopes: Iterable[Scope], box: Scope, phases: dict[ScopePart, Scope]
    ) -> None:
        for scope in scopes:
            if scope.parent is None and scope.phase != "forward":
                if scope.part not in phases:
                    phases[scope.part] = _scope_like(scope, None)
                around = phases[scope.part]
                own = Scope(box.part, parent=around, kind="rank", phase=scope.phase)
                self._boxes[own] = len(self._boxes)
            else:
                # Parents come first.
                above = box if scope.parent is None else self._scopes[scope.parent]
                own = _scope_like(scope, above)
            self._scopes[scope] = own

    def _place(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.kind != "input":
                node.scope = self._around(node)
            for value in node.outputs:
                value.device = self._device(value.device)
            if node.body is not None:
                self._place(node.body.nodes)

    def _around(self, node: Node) -> Scope | None:
        """Return the scope of an operation; if none, the last box of those that it reads.

        What scales the gradients of all micro batches follows them, and is read by no module.
        """
        if node.scope is not None:
            return self._scopes.get(node.scope, node.scope)
        read = {self._box_around(value.producer.scope) for value in node.inputs} - {None}
        return max(read, key=self._boxes.__getitem__, default=self.box)

    def _device(self, device: str) -> str:
        return device if device.startswith(f"{self.ranks} ") else device_on(self.ranks, device)

    def _value(self, given: Any) -> Any:
        """Return a value on these ranks, also one that no node gives; all else as it is."""
        if not isinstance(given, Value) or given.device == self._device(given.device):
            return given
        device = self._device(given.device)
        return Value(given.producer, given.index, given.shape, given.dtype, device, given.sharding)

    def _call(self, call: Call) -> Call:
        return replace(
            call,
            scope=self._scopes.get(call.scope, call.scope),
            caller=call.caller and self._scopes.get(call.caller, call.caller),
            arguments=[
                Argument(name, map_nest(nest, self._value)) for name, nest in call.arguments
            ],
            results=map_nest(call.results, self._value),
            parameters=self._owned(call.parameters),
        )

    def _owned(self, parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
        owned = []
        for one in parameters:
            number = one.number if one.number < 0 else one.number + self._number
            self.next_number = max(self.next_number, number + 1)
            owned.append(one._replace(device=self._device(one.device), number=number))
        return tuple(owned)


def _scope_like(scope: Scope, parent: Scope | None) -> Scope:
    return Scope(
        scope.part,
        parent=parent,
        kind=scope.kind,
        qualified_name=scope.qualified_name,
        phase=scope.phase,
    )
