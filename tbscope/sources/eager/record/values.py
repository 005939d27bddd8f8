"""The values that tensors hold: followed by identity and by storage, held weakly.

A tensor that is written into holds a new value from then on. What reads the same
storage through another tensor gets the writer as a control input.

Tensors stand inside of others: of those of `vmap`, `grad` and `jvp`, and of subclasses. A wrapper
that an operation gave holds others that nobody saw it make. Once somebody reads one of those, it
is what was taken out of the wrapper; and a wrapper in which something is another than it was is
made anew.
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
    held_tensors,
    holds_others,
    is_wrapper,
    lies_in,
    same_storage,
    storage_keys,
    type_names,
)

__all__ = ["Inside", "TensorValues", "add_value", "shape_of"]


def _nothing(tensor: torch.Tensor) -> None:
    """Know nothing of any tensor."""


class TensorValues:
    """Which value each tensor holds now.

    Args:
        builder: The door to the graph.

    Attributes:
        builder: The door to the graph.
        writes: What was written into which storage.
        wrappers: The tensors that are made of others, and those inside of them.
        held: The values of tensors by identity, for whoever asks for each tensor of a trace. An
            entry counts only while its tensor lives, as identities are reused.
        from_pass: Returns the value of what a backward pass has given that is one operation; None
            for any other tensor.
        of_passes: Those values that were asked for.
        names: The qualified names of parameters and buffers, by their nodes.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self._nodes = builder.graph.nodes
        self._order: dict[Node, int] = {}
        self.held: dict[int, tuple[ref[torch.Tensor], Value]] = {}
        self.wrappers = _Wrappers(self.held)
        self.writes = Writes()
        self.from_pass: Callable[[torch.Tensor], Value | None] = _nothing
        self.of_passes: set[Value] = set()
        self.names: dict[Node, str] = {}

    def find(self, tensor: torch.Tensor) -> Value | None:
        """Return the value that a tensor held when it was last read; None for an unknown one."""
        found = self.seen(tensor)
        return self.from_pass(tensor) if found is None else found

    def seen(self, tensor: torch.Tensor) -> Value | None:
        """Return the value that a tensor held when it was last read, if anything has asked."""
        held = self.held.get(id(tensor))
        if held is not None and held[0]() is tensor:
            return held[1]
        # In most runs nothing is made of others.
        return self.wrappers.value(tensor) if self.wrappers.any else None

    def append(
        self, op: str, scope: Scope | None, inputs: list[Value], source: Source | None = None
    ) -> Node:
        """Append an operation that is seen by nobody, and reads these values as its arguments."""
        arguments = [Argument(None, value) for value in inputs]
        return self.builder.append_op(op, scope, inputs, arguments, [], source, [])

    def give(self, node: Node, tensor: torch.Tensor) -> Value:
        """Make a tensor the next output of a node."""
        value = add_value(node, tensor)
        if type(tensor) in PLAIN and innermost_transform() is None:
            self.held[id(tensor)] = (ref(tensor), value)
        else:
            self.wrappers.hold(tensor, value)
        return value

    def hold(self, tensor: torch.Tensor, value: Value) -> None:
        """Have a tensor hold a value that a node gives already."""
        if type(tensor) in PLAIN:
            self.held[id(tensor)] = (ref(tensor), value)
        else:
            self.wrappers.hold(tensor, value)

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
        if not self.writes.any:
            return []
        found: dict[Node, None] = {}
        for tensor, value in zip(read, values, strict=True):
            for write in self.writes.touching(tensor, self._order_of(value.producer)):
                found[write.node] = None
        for value in values:
            found.pop(value.producer, None)
        return sorted(found, key=self._order_of)

    def alive(self) -> list[tuple[torch.Tensor, Value]]:
        """Return the tensors that somebody still holds with their values, in order."""
        found = [
            (tensor, value) for held, value in self.held.values() if (tensor := held()) is not None
        ]
        found += self.wrappers.alive()
        return sorted(found, key=lambda pair: (self._order_of(pair[1].producer), pair[1].index))

    def unread(self, given: Set[Value] = frozenset()) -> list[torch.Tensor]:
        """Return the tensors that operations made, somebody still holds, and nothing has read.

        A backward pass and an optimizer are no readers of a loss.

        Args:
            given: What passes have given to whoever asked for gradients.
        """
        read = {
            value
            for node in self._nodes
            for value in (node.inputs if node.outputs else ())
            if node.phase == "forward" or value.producer.phase != "forward"
        }

        def is_left(value: Value) -> bool:
            maker = value.producer
            # What passes and optimizers keep for themselves is no result of a step.
            of_step = maker.kind == "op" and (maker.phase == "forward" or value in given)
            return of_step and value not in read and value not in self.of_passes

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

    @cached_property
    def _places(self) -> dict[int, int]:
        """By storage the first place of one that lies in it."""
        places: dict[int, int] = {}
        for place, tensor in enumerate(self._tensors):
            for key in storage_keys([tensor]):
                places.setdefault(key, place)
        return places

    def first(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the first that is a tensor, or shares storage with it; None for none."""
        found = [self._places[key] for key in storage_keys([tensor]) if key in self._places]
        if found:
            return self._tensors[min(found)]
        return tensor if id(tensor) in self.identities else None


class Inside:
    """A tensor inside of a wrapper that an operation gave.

    Attributes:
        held: The tensor, weakly.
        outer: What the wrapper held then; or the wrapper, where that is inside of another one.
        op: How it is taken out; None where both are the same to whoever reads them.
        dimension: The dimension that `vmap` hides; None for any other.
        shape: Its sizes.
        dtype: Its type.
        device: Where it is.
        value: What it holds; None until somebody asks.
    """

    def __init__(
        self, tensor: torch.Tensor, outer: "Value | Inside", op: str | None, dimension: int | None
    ) -> None:
        self.held = ref(tensor)
        self.outer = outer
        self.op, self.dimension = op, dimension
        self.shape = shape_of(tensor)
        self.dtype, self.device = type_names(tensor.dtype, tensor.device)
        self.value: Value | None = None

    @property
    def root(self) -> Value:
        """What the outermost wrapper held."""
        outer = self.outer
        while isinstance(outer, Inside):
            outer = outer.outer
        return outer


class _Part(NamedTuple):
    """One tensor in a tensor of a subclass, as it was when that was made."""

    held: "ref[torch.Tensor]"
    was: Value | Inside | None

    def is_now(self, tensor: torch.Tensor, now: Value | Inside | None) -> bool:
        """Tell whether it is still the same, and holds the same."""
        if self.held() is not tensor:
            return False
        was = self.was
        if now is was:
            return True
        if was is None:
            # One from outside that somebody has read since is still what it was.
            return not isinstance(now, Value) or now.producer.kind != "op"
        return isinstance(was, Inside) and now is was.value


@dataclass(slots=True, eq=False)
class _Composite:
    """A tensor of a subclass, with what it holds and what is inside of it."""

    held: "ref[torch.Tensor]"
    value: Value
    parts: dict[str, _Part]


class _Wrappers:
    """The tensors that are made of others, and those inside of them.

    Args:
        held: The values of all other tensors, by identity.

    Attributes:
        any: Whether anything was inside of another, or shows another; in most models nothing is.
    """

    def __init__(self, held: dict[int, tuple["ref[torch.Tensor]", Value]]) -> None:
        self.any = False
        self._held = held
        self._inside: dict[int, Inside] = {}
        self._composites: dict[int, _Composite] = {}
        self._faces: dict[int, tuple[ref[torch.Tensor], Value]] = {}

    # -- asking ---------------------------------------------------------------------------

    def value(self, tensor: torch.Tensor) -> Value | None:
        """Return what a tensor of a subclass held when it was last made; None for any other."""
        composite = self._composite(tensor)
        return composite.value if composite is not None else None

    def inside(self, tensor: torch.Tensor) -> Inside | None:
        """Return what a tensor is inside of; None where it is in nothing."""
        found = self._inside.get(id(tensor))
        return found if found is not None and found.held() is tensor else None

    def face(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of the tensor that another one shows; None where none is known."""
        found = self._faces.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def is_composite(self, tensor: torch.Tensor) -> bool:
        """Tell whether what a tensor is may be told by others in it."""
        return holds_others(type(tensor))

    def changed(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return those in a tensor of a subclass that are others, or hold others, than they did."""
        composite = self._composite(tensor)
        assert composite is not None
        found = []
        for name, part in held_tensors(tensor):
            was = composite.parts.get(name)
            if was is None or not was.is_now(part, self._state(part)):
                found.append(part)
        return found

    def left(self, read: set[Value]) -> list[tuple[torch.Tensor, Value]]:
        """Return the tensors whose wrapper is gone, with its value, unless that is read."""
        return [
            (tensor, inside.root)
            for inside in self._inside.values()
            if inside.value is None and inside.root not in read
            if (tensor := inside.held()) is not None
        ]

    def alive(self) -> list[tuple[torch.Tensor, Value]]:
        """Return the tensors of subclasses that somebody still holds, with their values."""
        return [
            (tensor, composite.value)
            for composite in self._composites.values()
            if (tensor := composite.held()) is not None
        ]

    # -- noting ---------------------------------------------------------------------------

    def hold(self, tensor: torch.Tensor, value: Value) -> None:
        """Note what a tensor holds now, and with it all that is inside of it."""
        again = isinstance(self._state(tensor), Value)
        self._enter(tensor, value, again=again)
        self.keep(tensor, value)

    def keep(self, tensor: torch.Tensor, value: Value) -> None:
        """Note what a tensor holds now; those inside of it are known by themselves."""
        self._inside.pop(id(tensor), None)
        if self.is_composite(tensor):
            parts = {
                name: _Part(ref(part), self._state(part)) for name, part in held_tensors(tensor)
            }
            self._composites[id(tensor)] = _Composite(ref(tensor), value, parts)
            self.any = True
            self._held.pop(id(tensor), None)
        else:
            self._held[id(tensor)] = (ref(tensor), value)

    def show(self, face: torch.Tensor, value: Value) -> None:
        """Note that a tensor shows the value of another one."""
        self._faces[id(face)] = (ref(face), value)
        self.any = True

    def let_go(self, tensor: torch.Tensor) -> None:
        """Hold no reference to a tensor any more, not even a weak one."""
        for table in (self._held, self._inside, self._composites, self._faces):
            table.pop(id(tensor), None)
        for composite in self._composites.values():
            composite.parts = {
                name: part for name, part in composite.parts.items() if part.held() is not tensor
            }

    def forget(self) -> None:
        """Let go of everything."""
        self._inside.clear()
        self._composites.clear()
        self._faces.clear()

    def _enter(self, tensor: torch.Tensor, outer: Value | Inside, *, again: bool) -> None:
        """Note what is inside of a tensor; what is known by itself stays so, unless it is new."""
        for inner, op, dimension in self._ways(tensor):
            if self._state(inner) is not None:
                if not again:
                    continue
                self._held.pop(id(inner), None)
                self._composites.pop(id(inner), None)
            inside = self._inside[id(inner)] = Inside(inner, outer, op, dimension)
            self.any = True
            self._enter(inner, inside, again=again)

    def _ways(self, tensor: torch.Tensor) -> list[tuple[torch.Tensor, str | None, int | None]]:
        """Return what is inside of a tensor, each with how it is taken out."""
        wrapped = functorch_inner(tensor)
        if wrapped is not None:
            dimension = batch_dimension(tensor)
            return [(wrapped, None if dimension is None else "remove_batch_dim", dimension)]
        held = held_tensors(tensor) if self.is_composite(tensor) else []
        if len(held) == 1 and self.is_all(tensor, held[0][1]):
            return [(held[0][1], None, None)]
        return [(part, name.strip("_"), None) for name, part in held]

    def is_all(self, tensor: torch.Tensor, part: torch.Tensor) -> bool:
        """Tell whether the only tensor inside of a wrapper is the same to whoever reads them."""
        return (
            is_wrapper(type(tensor))
            and part.dtype == tensor.dtype
            and shape_of(part) == shape_of(tensor)
        )

    def _state(self, tensor: torch.Tensor) -> Value | Inside | None:
        held = self._held.get(id(tensor))
        if held is not None and held[0]() is tensor:
            return held[1]
        return self.value(tensor) or self.inside(tensor)

    def _composite(self, tensor: torch.Tensor) -> _Composite | None:
        found = self._composites.get(id(tensor))
        return found if found is not None and found.held() is tensor else None


def add_value(node: Node, tensor: torch.Tensor) -> Value:
    """Make a tensor the next output of a node."""
    dtype, device = type_names(tensor.dtype, tensor.device)
    outputs = node.outputs
    if type(tensor) in PLAIN and not tensor.is_nested:
        value = Value(node, len(outputs), tuple(tensor.shape), dtype, device)
    else:
        value = Value(node, len(outputs), shape_of(tensor), dtype, device, sharding_of(tensor))
    outputs.append(value)
    return value


def shape_of(tensor: torch.Tensor) -> Shape:
    """Return the sizes of a tensor; None for each size that is not a plain number."""
    try:
        shape = tuple(tensor.shape)
    except RuntimeError:
        # A nested tensor of the strided layout knows only some of its sizes.
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
