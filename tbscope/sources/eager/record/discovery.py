"""Makes tensors known that no watched operation gave: inputs, parameters, constants."""

from copy import copy
from typing import TYPE_CHECKING, Any

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Node, Note, Value
from tbscope.sources.eager.active import Arrival, arrivals
from tbscope.sources.eager.record.scope_stack import ScopeStack
from tbscope.sources.eager.record.values import TensorValues
from tbscope.sources.torch.contents import content_of
from tbscope.sources.torch.nests import tensor_leaves
from tbscope.sources.torch.registry import TensorPlace

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Discovery"]


class Discovery:
    """Finds the value of any tensor; adds the node for a tensor not seen before.

    Args:
        builder: The door to the graph.
        scopes: The scopes that are open.
        values: The values that tensors hold.
        open_ended: Whether an unknown tensor is an input where no module runs.

    Attributes:
        stand_in: Returns who stands in for a tensor, the tensor itself where nobody does;
            None where the run has no stand-ins.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        scopes: ScopeStack,
        *,
        values: TensorValues,
        open_ended: bool,
    ) -> None:
        self._builder = builder
        self._scopes = scopes
        self._registry = scopes.registry
        self._values = values
        self._open_ended = open_ended
        self.stand_in: Callable[[torch.Tensor], torch.Tensor] | None = None
        # The threads, with their lines, of which was told that they have made a constant.
        self._threads: set[tuple[str, Any]] = set()
        # By identity; the tensors are held, so that their identities stay their own.
        self._hidden: dict[int, tuple[str, torch.Tensor]] = {}

    def branch(self, scopes: ScopeStack) -> "Discovery":
        """Return one for the tensors that another thread meets."""
        branch = copy(self)
        branch._scopes = scopes
        return branch

    def value_of(self, tensor: torch.Tensor) -> Value:
        """Return the value that a tensor holds now; a new one for a tensor not seen before."""
        return self._values.get(tensor) or self._discover(tensor)

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor holds a value, or is a parameter or buffer of a module."""
        return self._values.get(tensor) is not None or self._registry.tensor(tensor) is not None

    def add_input(self, name: str, tensor: torch.Tensor) -> None:
        """Make a tensor an input of the graph under this path."""
        known = self._values.get(tensor)
        if known is not None:
            also = known.producer.attributes
            also["also"] = f"{also['also']}, {name}" if "also" in also else name
            return
        self._values.give(self._builder.append_source("input", name), tensor)

    def add_hidden_input(self, name: str, tensor: torch.Tensor) -> None:
        """Make a tensor an input under this path as soon as something reads it."""
        if self._values.get(tensor) is None:
            self._hidden.setdefault(id(tensor), (name, tensor))

    def add_unknown(self, given: list[tuple[str, Any]]) -> None:
        """Make inputs of the tensors that come from outside of a region."""
        for name, nest in given:
            for path, tensor in tensor_leaves(nest, name, public=True):
                if not self.is_known(tensor):
                    self.add_input(path, tensor)
            for path, tensor in tensor_leaves(nest, name):
                self.add_hidden_input(path, tensor)

    def forget(self) -> None:
        """Let go of all tensors, once the run is over."""
        self._hidden.clear()

    def _discover(self, tensor: torch.Tensor) -> Value:
        if self.stand_in is not None and (twin := self.stand_in(tensor)) is not tensor:
            return self.value_of(twin)
        place = self._registry.tensor(tensor)
        if place is None:
            alias = self._values.alias(tensor, self.value_of)
            if alias is not None:
                return alias
            place = self._late_tensor(tensor)
        if place is not None:
            node = self._held(tensor, place)
        elif id(tensor) in self._hidden:
            node = self._builder.append_source("input", self._hidden[id(tensor)][0])
        elif self._open_ended and self._scopes.at_top:
            node = self._builder.append_source("input", "input")
        else:
            node = self._constant(tensor)
        return self._values.give(node, tensor)

    def _late_tensor(self, tensor: torch.Tensor) -> TensorPlace | None:
        """Look for a tensor that the running module holds only since it ran."""
        place = self._scopes.running.place
        if place is None:
            return None
        module = place.module
        if not any(
            held is tensor
            for table in (module._parameters, module._buffers)
            for held in table.values()
        ):
            return None
        self._registry.refresh(place)
        return self._registry.tensor(tensor)

    # -- nodes --------------------------------------------------------------------------

    def _held(self, tensor: torch.Tensor, place: TensorPlace) -> Node:
        """Add a node for a parameter or buffer, in the scope of the module that owns it."""
        owner, kind = place.owner, place.kind
        scope = owner.first_scope or self._scopes.home(owner)
        node = self._builder.append_source(kind, place.qualified_name, scope)
        node.attributes["requires_grad"] = tensor.requires_grad
        return node

    def _constant(self, tensor: torch.Tensor) -> Node:
        """Add a node for a tensor from outside, named by the attribute that holds it."""
        running = self._scopes.running
        name = None
        if running.place is not None:
            for attribute, held in vars(running.place.module).items():
                if held is tensor:
                    prefix = running.place.name
                    name = f"{prefix}.{attribute}" if prefix else attribute
                    break
        node = self._builder.append_source("constant", name, running.inner)
        node.source = running.source
        arrival = arrivals.get(id(tensor))
        if arrival is not None and arrival.tensor() is tensor:
            self._tell_of(node, arrival)
        node.attributes.update(content_of(tensor))
        return node

    def _tell_of(self, node: Node, arrival: Arrival) -> None:
        """Tell of a thread that has made a constant; of each line of it once."""
        text = (
            f"the thread {arrival.thread!r}, which nobody watched, has made a constant of the "
            "graph: what it computed is not in it"
        )
        node.attributes["thread"] = arrival.thread
        if (arrival.thread, arrival.source) not in self._threads:
            self._threads.add((arrival.thread, arrival.source))
            self._builder.graph.notes.append(Note(text, arrival.source, node))
