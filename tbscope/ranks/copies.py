"""Copies the graph of a rank into a merged one: in boxes, and with the ranks in its devices.

A training step of several ranks is drawn as that of one is, in a row: what each ran in the forward
pass, then `gradients` and `optimizer` with a box of each rank in them. One box around all of a
rank would read what another rank sends in the backward pass, and feed it in the forward pass.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tbscope.ir.facts import device_on, ranks_text
from tbscope.ir.graph import Argument, Call, Graph, Nest, Node, Output, Parameter, Value
from tbscope.ir.nests import map_nest
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
        self.next_number = number
        self._number = number
        self._scopes: dict[Scope, Scope] = {}
        # The boxes of this copy, with their places in the order of phases.
        self._boxes: dict[Scope | None, int] = {self.box: 0}
        self._box_around = Nearest[Scope](lambda one: one if one in self._boxes else None)
        self._devices: dict[str, str] = {}
        self._parameters: dict[Parameter, Parameter] = {}
        # What a value was made to: those that no node gives are met more than once, too.
        self._strays: dict[Value, Value] = {}
        self.graph = graph.copy()
        if self.box is not None:
            self._add_scopes(self.graph.scopes(), self.box, {} if phases is None else phases)
        self._place(self.graph.nodes)
        self.graph.calls = [self._call(call) for call in self.graph.calls]
        self.graph.outputs = [self._output(output) for output in self.graph.outputs]
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
                node.scope = self._loose(node) if node.scope is None else self._scope(node.scope)
            for value in node.outputs:
                value.device = self._device(value.device)
                self._strays[value] = value
            if node.body is not None:
                self._place(node.body.nodes)

    def _loose(self, node: Node) -> Scope | None:
        """Return the box of an operation that stands in none: of what it reads, the last one.

        What scales the gradients of all micro batches follows them, and is read by no module.
        """
        producers = [value.producer for value in node.inputs]
        read = {self._box_around(one.scope) for one in producers} - {None}
        return max(read, key=self._boxes.__getitem__, default=self.box)

    def _scope(self, scope: Scope) -> Scope:
        return self._scopes.get(scope, scope)

    def _device(self, device: str) -> str:
        told = self._devices.get(device)
        if told is None:
            told = self._devices[device] = device_on(self.ranks, device)
        return told

    def _value(self, held: Any) -> Any:
        if not isinstance(held, Value):
            return held
        known = self._strays.get(held)
        if known is None:
            device = self._device(held.device)
            known = self._strays[held] = Value(
                held.producer, held.index, held.shape, held.dtype, device, held.sharding
            )
        return known

    def _nest(self, nest: Nest) -> Nest:
        return map_nest(nest, self._value)

    def _output(self, output: Output) -> Output:
        return output if output.given is None else replace(output, given=self._value(output.given))

    def _call(self, call: Call) -> Call:
        return replace(
            call,
            scope=self._scope(call.scope),
            caller=call.caller and self._scope(call.caller),
            arguments=[Argument(name, self._nest(nest)) for name, nest in call.arguments],
            results=self._nest(call.results),
            parameters=self._owned(call.parameters),
        )

    def _owned(self, parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
        return tuple([self._parameter(one) for one in parameters])

    def _parameter(self, one: Parameter) -> Parameter:
        made = self._parameters.get(one)
        if made is None:
            number = one.number if one.number < 0 else one.number + self._number
            self.next_number = max(self.next_number, number + 1)
            made = one._replace(device=self._device(one.device), number=number)
            self._parameters[one] = made
        return made


def _scope_like(scope: Scope, parent: Scope | None) -> Scope:
    return Scope(
        scope.part,
        parent=parent,
        kind=scope.kind,
        qualified_name=scope.qualified_name,
        phase=scope.phase,
    )
