"""What stands inside of tensors: of those of `vmap`, `grad` and `jvp`, and of subclasses.

A wrapper that an operation gave holds others that nobody saw it make. Once somebody reads one
of those, it is what was taken out of the wrapper; and a wrapper in which something is another
than it was is made anew.
"""

from typing import NamedTuple, TypeAlias
from weakref import ref

import torch

from tbscope.ir.graph import Node, Shape, Value
from tbscope.sources.torch.internals import batch_dimension, functorch_inner, plain_size
from tbscope.sources.torch.ranks import sharding_of
from tbscope.sources.torch.wrapping import (
    PLAIN,
    held_tensors,
    holds_others,
    is_wrapper,
    type_names,
)

__all__ = ["Inside", "Step", "Wrappers", "add_value", "shape_of"]

Held: TypeAlias = dict[int, tuple["ref[torch.Tensor]", Value]]


class Step(NamedTuple):
    """The way from a wrapper to what is inside of it.

    Attributes:
        op: What it is called; None where both are the same to whoever reads them.
        dimension: The dimension that `vmap` hides; None for any other.
    """

    op: str | None
    dimension: int | None = None


_SAME = Step(None)


class Inside:
    """A tensor inside of a wrapper that an operation gave.

    Attributes:
        held: The tensor, weakly.
        outer: What the wrapper held then; or the wrapper, where that is inside of another one.
        step: How it is taken out.
        shape: Its sizes.
        dtype: Its type.
        device: Where it is.
        value: What it holds; None until somebody asks.
    """

    __slots__ = ("device", "dtype", "held", "outer", "shape", "step", "value")

    def __init__(self, tensor: torch.Tensor, outer: "Value | Inside", step: Step) -> None:
        self.held = ref(tensor)
        self.outer = outer
        self.step = step
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


class _Composite:
    """A tensor of a subclass, with what it holds and what is inside of it."""

    __slots__ = ("held", "parts", "value")

    def __init__(self, tensor: torch.Tensor, value: Value, parts: dict[str, _Part]) -> None:
        self.held = ref(tensor)
        self.value = value
        self.parts = parts


class Wrappers:
    """The tensors that are made of others, and those inside of them.

    Args:
        held: The values of all other tensors, by identity.

    Attributes:
        any: Whether anything was inside of another, or shows another; in most models nothing is.
    """

    def __init__(self, held: Held) -> None:
        self.any = False
        self._held = held
        self._inside: dict[int, Inside] = {}
        self._composites: dict[int, _Composite] = {}
        self._faces: dict[int, tuple[ref[torch.Tensor], Value]] = {}
        self._kinds: dict[type, bool] = {}

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
        kind = type(tensor)
        if kind in PLAIN:
            return False
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = holds_others(kind)
        return known

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
            self._composites[id(tensor)] = _Composite(tensor, value, parts)
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
        for inner, step in self._steps(tensor):
            if self._state(inner) is not None:
                if not again:
                    continue
                self._held.pop(id(inner), None)
                self._composites.pop(id(inner), None)
            inside = self._inside[id(inner)] = Inside(inner, outer, step)
            self.any = True
            self._enter(inner, inside, again=again)

    def _steps(self, tensor: torch.Tensor) -> list[tuple[torch.Tensor, Step]]:
        wrapped = functorch_inner(tensor)
        if wrapped is not None:
            dimension = batch_dimension(tensor)
            hidden = dimension is not None
            return [(wrapped, Step("remove_batch_dim", dimension) if hidden else _SAME)]
        if not self.is_composite(tensor):
            return []
        held = held_tensors(tensor)
        if len(held) == 1 and self.is_all(tensor, held[0][1]):
            return [(held[0][1], _SAME)]
        return [(part, Step(name.strip("_"))) for name, part in held]

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
    types = type_names(tensor.dtype, tensor.device)
    value = Value(node, len(node.outputs), shape_of(tensor), *types)
    value.sharding = sharding_of(tensor)
    node.outputs.append(value)
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
