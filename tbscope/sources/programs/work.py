"""The work of operations: which kernels run inside one, with what FLOPs, and what they write.

A program names an operation by what it was called with, and nothing of what that does. So each
one runs here once, on stand-ins without content; equal ones are known after the first.
"""

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from tbscope.ir.graph import Gradient, Node, Role
from tbscope.sources.programs.slots import Slot, slots_in
from tbscope.sources.programs.types import TensorType, placed, replaced, type_nest, types_in
from tbscope.sources.torch.flops import Formulas, KernelWork
from tbscope.sources.torch.internals import (
    DispatchMode,
    fake_mode,
    is_composite,
    quiet_fake_mode,
    storage_key,
)
from tbscope.sources.torch.nests import INSIDE, is_walked, leaves_in, rebuilt
from tbscope.sources.torch.operations import KernelFacts, kernel_facts, role_of

__all__ = ["Done", "Workshop"]


# Of these, each device has kernels of its own.
_BY_DEVICE = re.compile(r"attention|lstm|gru|rnn|transformer", re.IGNORECASE)
# Modules of these ask nobody where they are, but for those above.
_ON_ANY_DEVICE = "torch.nn.modules."


class Done(NamedTuple):
    """What one operation does.

    Attributes:
        kernels: Its kernels by name, in order.
        flops: Their FLOPs; None where they are not known.
        gradients: What the backward pass computes for it.
        allocated_bytes: The bytes of its results that are no memory of its arguments.
        written: Positions among the tensors that it reads of those that it writes into.
        shows: For each tensor that it gives, the position of that whose memory it shows, or None.
        results: Its results, with a `TensorType` for each tensor.
        role: What it is if it computes nothing.
    """

    kernels: tuple[str, ...] = ()
    flops: int | None = None
    gradients: tuple[Gradient, ...] = ()
    allocated_bytes: int = 0
    written: tuple[int, ...] = ()
    shows: tuple[int | None, ...] = ()
    results: Any = None
    role: Role | None = None


class Workshop:
    """Runs operations on stand-ins.

    Args:
        uncounted: Where each kernel is told that computes and has no FLOPs formula.
    """

    def __init__(self, uncounted: dict[str, str]) -> None:
        self._formulas = Formulas(uncounted)
        self._uncounted = uncounted
        self._known: dict[Any, Done | None] = {}
        self._mode: Any = None
        self._composite: dict[KernelFacts, bool] = {}

    def is_composite(self, facts: KernelFacts) -> bool:
        """Tell whether an operator of torch's own is made of others (`linear`)."""
        known = self._composite.get(facts)
        if known is None:
            known = facts.name.startswith("aten::") and is_composite(facts.kernel)
            self._composite[facts] = known
        return known

    def run(
        self,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        *,
        module: tuple[torch.nn.Module, list[tuple[torch.Tensor, Slot]]] | None = None,
    ) -> Done | None:
        """Return what an operation does; None where its arguments do not tell, or it raises.

        Args:
            function: The operation.
            args: Its positional arguments, with slots for tensors.
            kwargs: Its keyword arguments.
            module: The module whose forward it is, and its tensors with their slots; None for none.
        """
        slots: list[Slot] = []
        try:
            key = (
                id(function) if module is None else _key_of_module(*module, slots),
                _key_of(args, slots),
                _key_of(kwargs, slots),
            )
            known = self._known.get(key, self)
        except (TypeError, RecursionError):
            # An argument that cannot be compared with those of another, or that holds itself.
            return None
        for slot in slots:
            if slot.type.stride is None:
                return None
        if known is self:
            # Whatever raises here has run in the program: its kernel has no form without content.
            try:
                on_meta = any(slot.type.device == "meta" for slot in slots)
                known = self._run(function, args, kwargs, module, on_meta=on_meta)
            except Exception:  # noqa: BLE001
                known = None
            self._known[key] = known
        return known  # type: ignore[return-value]

    def arranged(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the result of a function that puts tensors into other containers; else None.

        No kernel runs in such a function, and each tensor of its result is one of its arguments.
        """
        done = self.run(function, args, kwargs)
        if done is None or done.kernels or not done.shows or None in done.shows:
            return None
        slots = list(dict.fromkeys(slots_in([args, kwargs])))
        given = iter(done.shows)
        return replaced(done.results, TensorType, lambda _: slots[next(given) or 0])

    def _run(
        self,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        module: Any,
        *,
        on_meta: bool,
    ) -> Done:
        called = str(function if module is None else type(module[0]))
        asks = _BY_DEVICE.search(called) or (module is not None and _ON_ANY_DEVICE not in called)
        # What is the same on each device needs no stand-in that pretends to be on one.
        device = None if asks and not on_meta else "meta"
        if self._mode is None and device is None:
            self._mode = fake_mode()
        node = Node("", "")
        with self._standing_in(device), torch.no_grad():
            stand_ins: dict[Slot, torch.Tensor] = {}
            given = _with(args, stand_ins, device), _with(kwargs, stand_ins, device)
            if module is not None:
                memo = {id(tensor): _with(slot, stand_ins, device) for tensor, slot in module[1]}
                function = _copied(module[0], memo, deep=bool(asks)).forward
            read = list(stand_ins.values())
            with _Kernels(self._formulas) as kernels:
                result = function(*given[0], **given[1])
            results = list(leaves_in(result, torch.Tensor))
            node.kernels = kernels.names
            self._formulas.describe(node, kernels.work, read, results)
        told = type_nest(result)
        if device is not None:
            told = placed(told, _device_of(stand_ins))
        places = {storage_key(tensor): place for place, tensor in enumerate(read)}
        written = {places.get(key) for key in kernels.written}
        return Done(
            tuple(kernels.names),
            node.flops,
            node.gradients,
            node.allocated_bytes,
            tuple(sorted(place for place in written if place is not None)),
            tuple([places.get(storage_key(tensor)) for tensor in results]),
            told,
            role_of(kernels.names, reads=bool(read)),
        )

    @contextmanager
    def _standing_in(self, device: str | None) -> Iterator[None]:
        if device is None:
            with quiet_fake_mode(), self._mode:
                yield
        else:
            yield

    def count(self, facts: KernelFacts, args: Any, kwargs: Any, told: Any) -> Done | None:
        """Return what one kernel does that has a FLOPs formula, without running it.

        Args:
            facts: What its schema tells.
            args: Its positional arguments, with slots for tensors.
            kwargs: Its keyword arguments.
            told: What it gives, with a `TensorType` for each tensor.
        Returns:
            Its kernel, FLOPs and gradients; None where sizes are not known, or its formula raises.
        """
        formula = self._formulas[facts]
        if formula is None:
            return None
        slots: list[Slot] = []
        key = (id(facts), _key_of(args, slots), _key_of(kwargs, slots))
        gave = [Slot(typed) for typed in types_in(told)]
        if any(slot.type.stride is None for slot in (*slots, *gave)):
            return None
        if key not in self._known:
            stand_ins: dict[Slot, torch.Tensor] = {}
            given = _with(args, stand_ins, "meta"), _with(kwargs, stand_ins, "meta")
            read = list(stand_ins.values())
            results = [_with(slot, {}, "meta") for slot in gave]
            node = Node("", "", kernels=[facts.name])
            try:
                work = formula(*given, results[0] if isinstance(told, TensorType) else results)
            except Exception as error:  # noqa: BLE001 (a formula may be the user's code)
                self._formulas.fail(facts, error)
                self._known[key] = None
                return None
            self._formulas.describe(node, [work], read, results)
            size = node.allocated_bytes
            self._known[key] = Done((facts.name,), node.flops, node.gradients, size)
        return self._known[key]

    def by_name(self, facts: KernelFacts, dtypes: list[str]) -> int | None:
        """Return the FLOPs of a kernel of which the sizes are not known: 0, or None."""
        formula = self._formulas[facts]
        if formula is None and facts.name not in self._uncounted:
            return 0
        if not any(name.startswith(("float", "bfloat", "complex")) for name in dtypes):
            return 0
        if formula is not None:
            self._uncounted[facts.name] = "the sizes of what it reads are not known"
        return None


class _Kernels(DispatchMode):  # type: ignore[no-untyped-call]
    """Notes the kernels that run in a block."""

    def __init__(self, formulas: Formulas) -> None:
        super().__init__()
        self._formulas = formulas
        self.names: list[str] = []
        self.work: list[KernelWork] = []
        self.written: set[int | None] = set()

    def __torch_dispatch__(
        self, kernel: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        facts = kernel_facts(kernel)
        if facts.query:
            return kernel(*args, **kwargs)
        written = [storage_key(tensor) for tensor in facts.written(args, kwargs)]
        formula = self._formulas[facts]
        result = kernel(*args, **kwargs)
        self.names.append(facts.name)
        self.written.update(written)
        if formula is not None:
            try:
                self.work.append(formula(args, kwargs, result))
            except Exception as error:  # noqa: BLE001 (a formula may be the user's code)
                self._formulas.fail(facts, error)
        return result


def _copied(
    module: torch.nn.Module, stand_ins: dict[int, torch.Tensor], *, deep: bool
) -> torch.nn.Module:
    """Return a copy of a module whose tensors have no content: the module stays as it is.

    Args:
        module: The module.
        stand_ins: The stand-in of each of its tensors, by identity.
        deep: Whether a run may change what it has beside tensors, or it has parts.
    """
    if deep or module._modules:
        return copy.deepcopy(module, stand_ins)
    copied: torch.nn.Module = object.__new__(type(module))
    held = {
        name: {key: stand_ins.get(id(tensor)) for key, tensor in vars(module)[name].items()}
        for name in ("_parameters", "_buffers")
    }
    vars(copied).update(vars(module), **held)
    return copied


def _device_of(slots: Iterable[Slot]) -> str:
    """Return where an operation runs: where the first tensor is that it reads."""
    return next((slot.type.device for slot in slots), "cpu")


def _key_of(given: Any, slots: list[Slot]) -> Any:
    """Return what tells arguments from others; add the slots among them to a list."""
    kind = type(given)
    if kind is Slot:
        slots.append(given)
        tensor: TensorType = given.type
        return tensor.shape, tensor.stride, tensor.dtype, tensor.device, slots.index(given)
    if kind is list or kind is tuple:
        return (kind, *[_key_of(entry, slots) for entry in given])
    if kind is dict:
        return tuple([(key, _key_of(entry, slots)) for key, entry in given.items()])
    if kind is slice:
        # Python 3.12 is the first that could take one as a key.
        return (kind, *[_key_of(end, slots) for end in (given.start, given.stop, given.step)])
    if is_walked(kind):
        # Its class may compare as it likes: no call on another one is equal.
        return (object(), *[_key_of(slot, slots) for slot in slots_in(given)])
    return kind, given


def _key_of_module(
    module: torch.nn.Module, own: list[tuple[torch.Tensor, Slot]], slots: list[Slot]
) -> Any:
    """Return what tells the forward of a module from those of others.

    Layers of torch's own that are told the same, and hold tensors of the same types, do the same.
    """
    kind = type(module)
    if not kind.__module__.startswith(_ON_ANY_DEVICE) or module._modules:
        return id(module)
    told = []
    for name, held in vars(module).items():
        if name not in _OF_EVERY_MODULE:
            if not _is_plain(held):
                return id(module)
            told.append((name, _key_of(held, slots)))
    return kind, tuple(told), tuple([_key_of(slot, slots) for _, slot in own])


_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}


def _is_plain(held: Any) -> bool:
    kind = type(held)
    if kind is tuple or kind is list:
        return all(map(_is_plain, held))
    return kind in (int, float, bool, str) or held is None


def _with(given: Any, stand_ins: dict[Slot, torch.Tensor], device: str | None = None) -> Any:
    """Return arguments with a stand-in for each slot among them, on its device or on another."""

    def each(thing: Any) -> Any:
        if type(thing) is torch.device and device is not None:
            return torch.device(device)
        if type(thing) is not Slot:
            return INSIDE if is_walked(type(thing)) else thing
        if thing not in stand_ins:
            tensor: Any = thing.type
            stand_ins[thing] = torch.empty_strided(
                tensor.shape,
                tensor.stride,
                dtype=getattr(torch, tensor.dtype),
                device=device or tensor.device,
            )
        return stand_ins[thing]

    return rebuilt(given, each)
