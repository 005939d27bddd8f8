"""Current value of each tensor, found by the identity of the tensor.

`TensorValues.held` maps `id(tensor)` to a weak reference and the `Value` that the tensor has now.
An in-place write makes a new value: the writing node gets a further output, which replaces the
entry of the written tensor (`TensorValues.add_written_outputs`). Other views of the storage keep
their values; an operation that reads such a view later gets the writing node as a control
dependency (`TensorValues.earlier_writers`).

Tensors can be inside of other tensors: in the wrappers of `vmap`, `grad` and `jvp`, and in tensor
subclasses. No operation was seen that produces the inner tensors of a wrapper. An inner tensor that
an operation reads gets a node that takes it out of its wrapper; a wrapper with a replaced or
changed inner tensor gets a node that makes it anew.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from weakref import ref

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Node, Shape, Source, Value
from tbscope.ir.scopes import Scope
from tbscope.sources.torch.compat.tensors import (
    batch_dimension,
    functorch_inner,
    innermost_transform,
    plain_size,
)
from tbscope.sources.torch.distributed import sharding_of
from tbscope.sources.torch.subclasses import (
    PLAIN,
    Writes,
    inner_tensors,
    is_wrapper,
    may_have_inner_tensors,
    same_storage,
    shares_storage_with,
    storage_keys,
    type_names,
)

__all__ = ["InnerTensor", "TensorValues", "add_value", "shape_of"]


class TensorValues:
    """Current value of each tensor.

    Args:
        builder: The graph builder, through which all nodes are added.

    Attributes:
        builder: The graph builder.
        writes: The in-place writes so far, by storage.
        wrappers: The tensors that are made of other tensors, and their inner tensors.
        held: Weak reference and value by `id(tensor)`, public for callers that look up each tensor
            of a trace. An entry is valid only while its tensor lives, as identities are reused.
        from_pass: Returns the value of a tensor that came out of a backward pass recorded as one
            operation, or None for any other tensor; the attribute is None if there was no such
            pass.
        of_passes: The values that were made for tensors of these backward passes.
        names: The qualified names of parameters and buffers, by their nodes.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self._nodes = builder.graph.nodes
        self._order: dict[Node, int] = {}
        self.held: dict[int, tuple[ref[torch.Tensor], Value]] = {}
        self.wrappers = _Wrappers(self.held)
        self.writes = Writes()
        self.from_pass: Callable[[torch.Tensor], Value | None] | None = None
        self.of_passes: set[Value] = set()
        self.names: dict[Node, str] = {}

    def find(self, tensor: torch.Tensor) -> Value | None:
        """Return the value last recorded for a tensor, or None for an unknown tensor.

        A result of a backward pass that is one operation gets its value here, at the first request.
        """
        value = self.seen(tensor)
        return value if value is not None or self.from_pass is None else self.from_pass(tensor)

    def seen(self, tensor: torch.Tensor) -> Value | None:
        """Return the value last recorded for a tensor, or None; unlike `find`, add no output."""
        entry = self.held.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            return entry[1]
        # Most runs have no tensors that are made of others.
        return self.wrappers.value(tensor) if self.wrappers.any else None

    def append(
        self, op: str, scope: Scope | None, inputs: list[Value], source: Source | None = None
    ) -> Node:
        """Append an operation that no mode has seen; `inputs` are its arguments."""
        arguments = [Argument(None, value) for value in inputs]
        return self.builder.append_op(op, scope, inputs, arguments, [], source, [])

    def give(self, node: Node, tensor: torch.Tensor) -> Value:
        """Append an output to a node, and make it the current value of a tensor."""
        value = add_value(node, tensor)
        if type(tensor) in PLAIN and innermost_transform() is None:
            self.held[id(tensor)] = (ref(tensor), value)
        else:
            self.wrappers.hold(tensor, value)
        return value

    def hold(self, tensor: torch.Tensor, value: Value) -> None:
        """Make an existing value the current value of a tensor."""
        if type(tensor) in PLAIN:
            self.held[id(tensor)] = (ref(tensor), value)
        else:
            self.wrappers.hold(tensor, value)

    def value_in_same_storage(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a live tensor with the storage and the shape of this tensor.

        The tensor made last counts. Return None if there is none.
        """
        return next(
            (
                value
                for other, value in reversed(self.alive())
                if same_storage(other, tensor) and other.shape == tensor.shape
            ),
            None,
        )

    def make(self, node: Node, tensor: torch.Tensor) -> Value:
        """Append an output to a node for a tensor whose inner tensors have values of their own."""
        value = add_value(node, tensor)
        self.wrappers.keep(tensor, value)
        return value

    def add_written_outputs(
        self,
        node: Node,
        written: list[torch.Tensor],
        results: list[torch.Tensor],
        candidates: list[torch.Tensor],
    ) -> None:
        """Append an output for each tensor that a node wrote into, and record the writes.

        A kernel may write into a temporary view: the new value then belongs to the argument in the
        same storage (`_target`). Later reads of the storage through other tensors find the write by
        `earlier_writers`.

        Args:
            node: The node, recorded already, with its results as outputs.
            written: The tensors that its kernels wrote into, maybe views that only the kernel has.
            results: The tensors that it returned.
            candidates: Its arguments, which are tensors of the user's code.
        """
        with_output = {id(tensor) for tensor in results}
        arguments = _StorageIndex(candidates)
        for tensor in written:
            target = self._target(tensor, arguments)
            if target is None:
                continue
            if id(target) not in with_output:
                with_output.add(id(target))
                self.give(node, target)
            elif id(target) not in arguments.identities:
                # The node made and filled this result itself: it replaces no earlier value.
                continue
            value = self.find(target)
            assert value is not None
            self.writes.add(node, self._order_of(node), value, tensor)

    def written_positions(
        self,
        written: list[torch.Tensor],
        read: list[torch.Tensor],
        values: list[Value],
    ) -> tuple[int, ...]:
        """Return the positions among `read` of the tensors that an operation wrote into.

        Args:
            written: The tensors that its kernels wrote into, maybe views of those in `read`.
            read: The tensors that it reads.
            values: Their values, before the operation has outputs.
        """
        if not read:
            return ()
        # All storages at once: a kernel of a whole list writes into as many tensors as it reads.
        keys = storage_keys(written)
        identities = {id(tensor) for tensor in written}
        replaced = {self.find(tensor) for tensor in written}
        return tuple(
            [
                place
                for place, other in enumerate(read)
                if shares_storage_with(other, keys)
                or id(other) in identities
                or values[place] in replaced
            ]
        )

    def tensors_of(
        self, node: Node, results: list[torch.Tensor], written: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the tensors whose values are the outputs of a node, in order.

        Outputs without a tensor among `written` are skipped.

        Args:
            node: The node.
            results: The tensors that are its first outputs.
            written: Tensors, among them all that the node wrote into.
        """
        tensors = list(results)
        for value in node.outputs[len(results) :]:
            tensors += [tensor for tensor in written if self.find(tensor) is value][:1]
        return tensors

    def _target(self, tensor: torch.Tensor, candidates: "_StorageIndex") -> torch.Tensor | None:
        """Return the user's tensor that changes if a kernel writes into this tensor, or None."""
        # Under `vmap` or `grad` a kernel writes into an inner tensor; the value that changes is the
        # value of the wrapper.
        hidden = innermost_transform() is not None
        known = self.find(tensor) is not None
        if known and not hidden:
            return tensor
        argument = candidates.first(tensor)
        return tensor if argument is None and hidden and known else argument

    def earlier_writers(self, read: list[torch.Tensor], values: list[Value]) -> list[Node]:
        """Return the nodes that wrote into the tensors' memory through another tensor, in order.

        These become the control dependencies of an operation that reads the tensors. A write counts
        if it is later than the producer of the tensor's value, and if it overlaps with the tensor.

        Args:
            read: The tensors that are read.
            values: Their values.
        """
        if not self.writes.any:
            return []
        writers: dict[Node, None] = {}
        for tensor, value in zip(read, values, strict=True):
            for write in self.writes.touching(tensor, self._order_of(value.producer)):
                writers[write.node] = None
        for value in values:
            # The data edge from the producer is enough.
            writers.pop(value.producer, None)
        return sorted(writers, key=self._order_of)

    def alive(self) -> list[tuple[torch.Tensor, Value]]:
        """Return the live tensors with their values, ordered by producer and output."""
        pairs = [
            (tensor, value) for held, value in self.held.values() if (tensor := held()) is not None
        ]
        pairs += self.wrappers.alive()
        return sorted(pairs, key=lambda pair: (self._order_of(pair[1].producer), pair[1].index))

    def unread(self, given: Set[Value] = frozenset()) -> list[torch.Tensor]:
        """Return the live tensors that operations made and no operation reads.

        A backward pass or an optimizer does not count as a reader of a loss.

        Args:
            given: The values that backward passes returned to callers that asked for gradients.
        """
        read = {
            value
            for node in self._nodes
            for value in (node.inputs if node.outputs else ())
            if node.phase == "forward" or value.producer.phase != "forward"
        }

        def is_left(value: Value) -> bool:
            producer = value.producer
            # Tensors that backward passes and optimizers keep internally are no results of a step.
            of_step = producer.kind == "op" and (producer.phase == "forward" or value in given)
            return of_step and value not in read and value not in self.of_passes

        alive = self.alive()
        # A result of `vmap` is an inner tensor whose wrapper is gone when `vmap` returns.
        alive += self.wrappers.left(read.union(value for _, value in alive))
        return [tensor for tensor, value in alive if is_left(value)]

    def forget(self) -> None:
        """Release all tensors and values after the run."""
        self.held.clear()
        self.from_pass = None
        self.wrappers.forget()
        self._order.clear()

    def _order_of(self, node: Node) -> int:
        """Return the position of a node in the recording, counted from 0.

        The table of positions is extended on demand, as few runs need it.
        """
        if self._nodes[-1] is node:
            return len(self._nodes) - 1
        order = self._order
        if node not in order:
            for at in range(len(order), len(self._nodes)):
                order[self._nodes[at]] = at
        return order[node]


class _StorageIndex:
    """Search for a tensor in a list, by identity and by storage.

    Args:
        tensors: The tensors, in order; the storages of each are computed once.

    Attributes:
        identities: Their identities.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.identities = {id(tensor) for tensor in tensors}
        self._tensors = tensors

    @cached_property
    def _places(self) -> dict[int, int]:
        """Position of the first tensor in each storage, by storage."""
        places: dict[int, int] = {}
        for place, tensor in enumerate(self._tensors):
            for key in storage_keys([tensor]):
                places.setdefault(key, place)
        return places

    def first(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the first tensor of the list that shares storage with this tensor.

        A tensor without storage is returned itself if it is in the list. Return None if nothing
        fits.
        """
        positions = [self._places[key] for key in storage_keys([tensor]) if key in self._places]
        if positions:
            return self._tensors[min(positions)]
        return tensor if id(tensor) in self.identities else None


class InnerTensor:
    """A tensor inside of a wrapper that an operation returned.

    Attributes:
        held: The inner tensor, as a weak reference.
        outer: The value of the wrapper at that time, or the wrapper's own entry if the wrapper is
            inside of another wrapper.
        op: The operation that takes it out, or None if both are the same for a reader.
        dimension: The dimension that `vmap` hides; None for any other wrapper.
        shape: Its sizes.
        dtype: Its element type.
        device: Its device.
        value: Its value; None until an operation reads it.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        outer: "Value | InnerTensor",
        op: str | None,
        dimension: int | None,
    ) -> None:
        self.held = ref(tensor)
        self.outer = outer
        self.op, self.dimension = op, dimension
        self.shape = shape_of(tensor)
        self.dtype, self.device = type_names(tensor.dtype, tensor.device)
        self.value: Value | None = None

    @property
    def root(self) -> Value:
        """Value of the outermost wrapper."""
        outer = self.outer
        while isinstance(outer, InnerTensor):
            outer = outer.outer
        return outer


class _InnerState(NamedTuple):
    """State of one inner tensor at the time when its tensor of a subclass was made.

    Attributes:
        held: The inner tensor, as a weak reference.
        was: Its value or entry at that time; None if it had neither.
    """

    held: "ref[torch.Tensor]"
    was: Value | InnerTensor | None

    def is_now(self, tensor: torch.Tensor, now: Value | InnerTensor | None) -> bool:
        """Whether the inner tensor is still the same object with the same content."""
        if self.held() is not tensor:
            return False
        was = self.was
        if now is was:
            return True
        if was is None:
            # An inner tensor without a value then is unchanged if a source node (a parameter, an
            # input) produces it now: it was only read since.
            return not isinstance(now, Value) or now.producer.kind != "op"
        # The inner tensor may have been taken out of its own wrapper since, which changes nothing.
        return isinstance(was, InnerTensor) and now is was.value


@dataclass(slots=True, eq=False)
class _Composite:
    """A tensor of a subclass, with its value, and the state of its inner tensors by attribute."""

    held: "ref[torch.Tensor]"
    value: Value
    parts: dict[str, _InnerState]


class _Wrappers:
    """The tensors that are made of other tensors, and their inner tensors.

    Args:
        held: The values of all other tensors, by identity.

    Attributes:
        any: Whether any tensor was inside of another tensor, or is an alias of one; False in most
            models, so that callers can skip a search.
    """

    def __init__(self, held: dict[int, tuple["ref[torch.Tensor]", Value]]) -> None:
        self.any = False
        self._held = held
        self._inside: dict[int, InnerTensor] = {}
        self._composites: dict[int, _Composite] = {}
        self._faces: dict[int, tuple[ref[torch.Tensor], Value]] = {}

    # -- asking ---------------------------------------------------------------------------

    def value(self, tensor: torch.Tensor) -> Value | None:
        """Return the value that a tensor of a subclass had when it was last made, or None."""
        composite = self._composite(tensor)
        return composite.value if composite is not None else None

    def inside(self, tensor: torch.Tensor) -> InnerTensor | None:
        """Return the `InnerTensor` entry of an inner tensor, or None for any other tensor."""
        entry = self._inside.get(id(tensor))
        return entry if entry is not None and entry.held() is tensor else None

    def face(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of the tensor of which this tensor is an alias, or None."""
        entry = self._faces.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def is_composite(self, tensor: torch.Tensor) -> bool:
        """Whether inner tensors may define the content of a tensor."""
        return may_have_inner_tensors(type(tensor))

    def changed(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the inner tensors that changed since their tensor of a subclass was made.

        A changed inner tensor is another object, or has another value.
        """
        composite = self._composite(tensor)
        assert composite is not None
        changed = []
        for name, part in inner_tensors(tensor):
            was = composite.parts.get(name)
            if was is None or not was.is_now(part, self._state(part)):
                changed.append(part)
        return changed

    def left(self, read: set[Value]) -> list[tuple[torch.Tensor, Value]]:
        """Return the live inner tensors whose wrapper is gone, with the value of the wrapper.

        Args:
            read: The values that operations read or live tensors have; their wrappers are skipped.
        """
        return [
            (tensor, inside.root)
            for inside in self._inside.values()
            if inside.value is None and inside.root not in read
            if (tensor := inside.held()) is not None
        ]

    def alive(self) -> list[tuple[torch.Tensor, Value]]:
        """Return the live tensors of subclasses, with their values."""
        return [
            (tensor, composite.value)
            for composite in self._composites.values()
            if (tensor := composite.held()) is not None
        ]

    # -- noting ---------------------------------------------------------------------------

    def hold(self, tensor: torch.Tensor, value: Value) -> None:
        """Set the value of a tensor, and register its inner tensors under that value."""
        again = isinstance(self._state(tensor), Value)
        self._enter(tensor, value, again=again)
        self.keep(tensor, value)

    def keep(self, tensor: torch.Tensor, value: Value) -> None:
        """Set the value of a tensor; its inner tensors keep their own values."""
        self._inside.pop(id(tensor), None)
        if self.is_composite(tensor):
            parts = {
                name: _InnerState(ref(part), self._state(part))
                for name, part in inner_tensors(tensor)
            }
            self._composites[id(tensor)] = _Composite(ref(tensor), value, parts)
            self.any = True
            self._held.pop(id(tensor), None)
        else:
            self._held[id(tensor)] = (ref(tensor), value)

    def show(self, face: torch.Tensor, value: Value) -> None:
        """Record that a tensor is an alias of a tensor with this value."""
        self._faces[id(face)] = (ref(face), value)
        self.any = True

    def let_go(self, tensor: torch.Tensor) -> None:
        """Drop all references to a tensor, weak references too."""
        for table in (self._held, self._inside, self._composites, self._faces):
            table.pop(id(tensor), None)
        for composite in self._composites.values():
            composite.parts = {
                name: part for name, part in composite.parts.items() if part.held() is not tensor
            }

    def forget(self) -> None:
        """Release all entries."""
        self._inside.clear()
        self._composites.clear()
        self._faces.clear()

    def _enter(self, tensor: torch.Tensor, outer: Value | InnerTensor, *, again: bool) -> None:
        """Register the inner tensors of a tensor.

        Args:
            tensor: The outer tensor.
            outer: Its value, or its own entry if it is an inner tensor itself.
            again: Whether the outer tensor has a new value, which also replaces values of inner
                tensors; otherwise inner tensors that have a value or an entry keep it.
        """
        for inner, op, dimension in self._ways(tensor):
            if self._state(inner) is not None:
                if not again:
                    continue
                self._held.pop(id(inner), None)
                self._composites.pop(id(inner), None)
            inside = self._inside[id(inner)] = InnerTensor(inner, outer, op, dimension)
            self.any = True
            self._enter(inner, inside, again=again)

    def _ways(self, tensor: torch.Tensor) -> list[tuple[torch.Tensor, str | None, int | None]]:
        """Return the inner tensors of a tensor.

        Each comes with the operation that takes it out (None if none is needed), and with the
        dimension that `vmap` hides (None for any other wrapper).
        """
        wrapped = functorch_inner(tensor)
        if wrapped is not None:
            dimension = batch_dimension(tensor)
            return [(wrapped, None if dimension is None else "remove_batch_dim", dimension)]
        parts = inner_tensors(tensor) if self.is_composite(tensor) else []
        if len(parts) == 1 and self.is_all(tensor, parts[0][1]):
            return [(parts[0][1], None, None)]
        return [(part, name.strip("_"), None) for name, part in parts]

    def is_all(self, tensor: torch.Tensor, part: torch.Tensor) -> bool:
        """Whether a wrapper and its only inner tensor are the same for a reader."""
        return (
            is_wrapper(type(tensor))
            and part.dtype == tensor.dtype
            and shape_of(part) == shape_of(tensor)
        )

    def _state(self, tensor: torch.Tensor) -> Value | InnerTensor | None:
        """Return the value of a tensor, or its entry as an inner tensor, or None."""
        entry = self._held.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            return entry[1]
        return self.value(tensor) or self.inside(tensor)

    def _composite(self, tensor: torch.Tensor) -> _Composite | None:
        composite = self._composites.get(id(tensor))
        return composite if composite is not None and composite.held() is tensor else None


def add_value(node: Node, tensor: torch.Tensor) -> Value:
    """Append an output to a node, with the shape and the type of a tensor."""
    dtype, device = type_names(tensor.dtype, tensor.device)
    outputs = node.outputs
    if type(tensor) in PLAIN and not tensor.is_nested:
        value = Value(node, len(outputs), tuple(tensor.shape), dtype, device)
    else:
        value = Value(node, len(outputs), shape_of(tensor), dtype, device, sharding_of(tensor))
    outputs.append(value)
    return value


def shape_of(tensor: torch.Tensor) -> Shape:
    """Return the sizes of a tensor, with None for each size that is not a plain number."""
    try:
        shape = tuple(tensor.shape)
    except RuntimeError:
        # A nested tensor of the strided layout has sizes for some of its dimensions only.
        return tuple(_size(tensor, dim) for dim in range(tensor.dim()))
    for size in shape:
        if type(size) is not int:
            return tuple(map(plain_size, shape))
    return shape


def _size(tensor: torch.Tensor, dim: int) -> int | None:
    try:
        return int(tensor.size(dim))
    except RuntimeError:
        return None
