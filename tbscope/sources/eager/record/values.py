"""The values that tensors hold: followed by identity and by storage, held weakly.

A tensor that is written into holds a new value from then on. What reads the same
storage through another tensor gets the writer as a control input.
"""

from collections.abc import Callable, Set
from weakref import ref

import torch

from tbscope.ir.graph import Node, Value
from tbscope.sources.eager.record.wrappers import Inside, Wrappers, add_value, shape_of
from tbscope.sources.torch.internals import innermost_transform
from tbscope.sources.torch.wrapping import (
    PLAIN,
    Writes,
    lies_in,
    same_storage,
    storage_keys,
    type_names,
)

__all__ = ["TensorValues"]


def _nothing(tensor: torch.Tensor) -> None:
    """Know nothing of any tensor."""


class TensorValues:
    """Which value each tensor holds now.

    Args:
        nodes: The nodes of the run, in order; whoever records adds to them.

    Attributes:
        written: Whether anything was written into that something else may read; most
            models write nothing.
        writes: What was written into which storage.
        wrappers: The tensors that are made of others, and those inside of them.
        held: The values of tensors by identity, for whoever asks for each tensor of a trace. An
            entry counts only while its tensor lives, as identities are reused.
        from_pass: Returns the value of what a backward pass has given that is one operation; None
            for any other tensor.
        of_passes: Those values that were asked for.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.written = False
        self._nodes = nodes
        self._order: dict[Node, int] = {}
        self.held: dict[int, tuple[ref[torch.Tensor], Value]] = {}
        self.wrappers = Wrappers(self.held)
        self.writes = Writes()
        self.from_pass: Callable[[torch.Tensor], Value | None] = _nothing
        self.of_passes: set[Value] = set()

    def get(self, tensor: torch.Tensor) -> Value | None:
        """Return the value that a tensor holds now; None for one that has to be looked into."""
        held = self.held.get(id(tensor))
        return held[1] if held is not None and held[0]() is tensor else None

    def find(self, tensor: torch.Tensor) -> Value | None:
        """Return the value that a tensor held when it was last read; None for an unknown one."""
        found = self.seen(tensor)
        return self.from_pass(tensor) if found is None else found

    def seen(self, tensor: torch.Tensor) -> Value | None:
        """Return the value that a tensor held when it was last read, if anything has asked."""
        found = self.get(tensor)
        # In most runs nothing is made of others.
        return self.wrappers.value(tensor) if found is None and self.wrappers.any else found

    def give(self, node: Node, tensor: torch.Tensor) -> Value:
        """Make a tensor the next output of a node."""
        if type(tensor) not in PLAIN or innermost_transform() is not None:
            value = add_value(node, tensor)
            self.wrappers.hold(tensor, value)
            return value
        types = type_names(tensor.dtype, tensor.device)
        shape = shape_of(tensor) if tensor.is_nested else tuple(tensor.shape)
        # By position, as this runs for each tensor of a trace.
        value = Value(node, len(node.outputs), shape, *types)
        node.outputs.append(value)
        self.held[id(tensor)] = (ref(tensor), value)
        return value

    def hold(self, tensor: torch.Tensor, value: Value) -> None:
        """Have a tensor hold a value that a node gives already."""
        if type(tensor) in PLAIN:
            self.held[id(tensor)] = (ref(tensor), value)
        else:
            self.wrappers.hold(tensor, value)

    def hold_whole(self, tensor: torch.Tensor, value: Value) -> None:
        """Have a tensor that is made of others hold a value, whatever these hold by themselves."""
        self.wrappers.keep(tensor, value)

    def written_into(self, tensor: torch.Tensor) -> list[Value]:
        """Return the values that were written into the memory of a tensor, in order."""
        writes = self.writes.touching(tensor, -1)
        return list(dict.fromkeys(write.value for write in reversed(writes)))

    def shown_by(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor that somebody still holds and another one shows whole."""
        return next(
            (
                value
                for other, value in reversed(self.alive())
                if same_storage(other, tensor) and other.shape == tensor.shape
            ),
            None,
        )

    def take_out(self, node: Node, inside: Inside) -> Value:
        """Make what is inside of a wrapper the output of a node."""
        value = Value(node, len(node.outputs), inside.shape, inside.dtype, inside.device)
        node.outputs.append(value)
        return value

    def make(self, node: Node, tensor: torch.Tensor) -> Value:
        """Make a tensor of others that are known the output of a node."""
        value = add_value(node, tensor)
        self.wrappers.keep(tensor, value)
        return value

    def give_written(
        self,
        node: Node,
        written: list[torch.Tensor],
        results: list[torch.Tensor],
        candidates: list[torch.Tensor],
    ) -> None:
        """Assign new values to the tensors that a node wrote into, and remember the writes.

        Args:
            node: The node, recorded already, with its results as outputs.
            written: The tensors that its kernels wrote into, maybe views that nobody else holds.
            results: The tensors that it returned.
            candidates: Its arguments: tensors that the user knows.
        """
        given = {id(tensor) for tensor in results}
        known = _Among(candidates)
        for tensor in written:
            target = self._target(tensor, known)
            if target is None:
                continue
            if id(target) not in given:
                given.add(id(target))
                self.give(node, target)
            elif id(target) not in known.identities:
                # A result that it made and filled itself: nobody has seen it before.
                continue
            value = self.find(target)
            assert value is not None
            self.writes.add(node, self._order_of(node), value, tensor)
            self.written = self.writes.any

    def places_of(
        self,
        written: list[torch.Tensor],
        read: list[torch.Tensor],
        values: list[Value],
    ) -> tuple[int, ...]:
        """Return which of the tensors that an operation reads it wrote into, by position.

        Args:
            written: The tensors that its kernels wrote into, maybe views of those.
            read: The tensors that it reads.
            values: Their values, before the operation has outputs.
        """
        if not read:
            return ()
        # Together: a kernel of a whole list writes into as many tensors as it reads.
        keys = storage_keys(written)
        identities = {id(tensor) for tensor in written}
        replaced = {self.find(tensor) for tensor in written}
        return tuple(
            [
                place
                for place, other in enumerate(read)
                if lies_in(other, keys) or id(other) in identities or values[place] in replaced
            ]
        )

    def tensors_of(
        self, node: Node, results: list[torch.Tensor], written: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return for each output of a node the tensor that holds it, where one of these does.

        Args:
            node: The node.
            results: The tensors that are its first outputs.
            written: Tensors, among them all that the node wrote into.
        """
        found = list(results)
        for value in node.outputs[len(results) :]:
            found += [tensor for tensor in written if self.find(tensor) is value][:1]
        return found

    def _target(self, tensor: torch.Tensor, candidates: "_Among") -> torch.Tensor | None:
        """Return the tensor known to the user that a write to this one changes."""
        # A kernel inside of `vmap` or `grad` writes into what the wrapper holds that is known.
        hidden = innermost_transform() is not None
        known = self.find(tensor) is not None
        if known and not hidden:
            return tensor
        found = candidates.first(tensor)
        return tensor if found is None and hidden and known else found

    def earlier_writers(self, read: list[torch.Tensor], values: list[Value]) -> list[Node]:
        """Return the nodes that wrote into the tensors' memory through another tensor, in order.

        Args:
            read: The tensors that are read.
            values: Their values.
        """
        if not self.written:
            return []
        found: dict[Node, None] = {}
        for tensor, value in zip(read, values, strict=True):
            for write in self.writes.touching(tensor, self._order_of(value.producer)):
                found[write.node] = None
        for value in values:
            found.pop(value.producer, None)
        return sorted(found, key=self._order_of)

    def forget_fresh(self, results: list[torch.Tensor], read: list[torch.Tensor]) -> None:
        """Forget writes to storages that results have taken over from tensors that are gone."""
        self.writes.forget_fresh(results, read)

    def alive(
        self, wanted: Callable[[Value], bool] | None = None
    ) -> list[tuple[torch.Tensor, Value]]:
        """Return the tensors that somebody still holds with their values, in order.

        Args:
            wanted: Which values these are; None for all.
        """
        found = [
            (tensor, value)
            for held, value in self.held.values()
            if (tensor := held()) is not None and (wanted is None or wanted(value))
        ]
        found += self.wrappers.alive()
        return sorted(found, key=lambda pair: (self._order_of(pair[1].producer), pair[1].index))

    def unread(self, given: Set[Value] = frozenset()) -> list[torch.Tensor]:
        """Return the tensors that operations made, somebody still holds, and nothing has read.

        A backward pass and an optimizer are no readers of a loss.

        Args:
            given: What passes have given to whoever asked for gradients.
        """
        read: set[Value] = set()
        for node in self._nodes:
            if node.outputs:
                forward = node.phase == "forward"
                for value in node.inputs:
                    if forward or value.producer.phase != "forward":
                        read.add(value)

        def is_left(value: Value) -> bool:
            maker = value.producer
            # What passes and optimizers keep for themselves is no result of a step.
            of_step = maker.kind == "op" and (maker.phase == "forward" or value in given)
            return of_step and value not in read and value not in self.of_passes

        if not self.wrappers.any:
            # Most of what is alive are parameters, and what is kept for them.
            return [tensor for tensor, _ in self.alive(is_left)]
        alive = self.alive()
        # What `vmap` gave is inside of a wrapper that went with it.
        alive += self.wrappers.left(read.union(value for _, value in alive))
        return [tensor for tensor, value in alive if is_left(value)]

    def forget(self) -> None:
        """Let go of all tensors and values, once the run is over."""
        self.held.clear()
        self.from_pass = _nothing
        self.wrappers.forget()
        self._order.clear()

    def _order_of(self, node: Node) -> int:
        """Return the position of a node in the recording, counted from 0; few runs ever ask."""
        if self._nodes[-1] is node:
            return len(self._nodes) - 1
        order = self._order
        if node not in order:
            for at in range(len(order), len(self._nodes)):
                order[self._nodes[at]] = at
        return order[node]


class _Among:
    """Some tensors, found by their storages, of which each is looked up once.

    Args:
        tensors: The tensors, in order.

    Attributes:
        identities: Their identities.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.identities = {id(tensor) for tensor in tensors}
        self._tensors = tensors
        # By storage the first place of one that lies in it.
        self._places: dict[int, int] | None = None

    def first(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the first that is a tensor, or shares storage with it; None for none."""
        places = self._places
        if places is None:
            places = self._places = {}
            for place, other in enumerate(self._tensors):
                for key in storage_keys([other]):
                    places.setdefault(key, place)
        found = [places[key] for key in storage_keys([tensor]) if key in places]
        if found:
            return self._tensors[min(found)]
        return tensor if id(tensor) in self.identities else None
