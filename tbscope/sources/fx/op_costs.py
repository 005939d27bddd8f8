"""The work of operations: which kernels run inside one, with what FLOPs, and what they write.

A program names an operation by what it was called with, and nothing of what that does. So each
one runs here once, on stand-ins without content; equal ones are known after the first. What an
operator writes into, and what it shows, its schema tells.
"""

import copy
import functools
import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tbscope.ir.graph import Gradient, Node, Role
from tbscope.sources.fx.aliasing import (
    Given,
    Held,
    Slot,
    TensorType,
    replaced,
    slots_in,
    type_nest,
    types_in,
)
from tbscope.sources.torch.calling.pytree import INSIDE, is_walked, leaves_in, rebuilt
from tbscope.sources.torch.compat.tensors import (
    DispatchMode,
    fake_mode,
    is_composite,
    quiet_fake_mode,
    schema_of,
    storage_key,
)
from tbscope.sources.torch.flops import Formulas
from tbscope.sources.torch.operations import KernelFacts, kernel_facts, role_of

if TYPE_CHECKING:
    from tbscope.sources.torch.flops import KernelWork

__all__ = ["Done", "Workshop", "gives_tensor", "shown_slots", "written_slots"]


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

    def done_by(self, facts: KernelFacts, given: Given, told: Any) -> Done | None:
        """Return what an operator does; None where its name and its schema tell all.

        Args:
            facts: What its schema tells.
            given: What it is given.
            told: What it gives, with a `TensorType` for each tensor.
        """
        composite = self._composite.get(facts)
        if composite is None:
            composite = facts.name.startswith("aten::") and is_composite(facts.kernel)
            self._composite[facts] = composite
        if composite:
            return self.run(facts.kernel, given)
        formula = self._formulas[facts]
        if formula is None:
            return None
        slots: list[Slot] = []
        key = id(facts), _key_of(given, slots)
        gave = [Slot(typed) for typed in types_in(told)]
        if any(slot.type.stride is None for slot in (*slots, *gave)):
            return None
        if key not in self._known:
            # One kernel is counted without being run.
            done = None
            stand_ins: dict[Slot, torch.Tensor] = {}
            args, kwargs = _with(given, stand_ins, "meta")
            results = _with(gave, {}, "meta")
            node = Node("", "", kernels=[facts.name])
            try:
                work = formula(args, kwargs, results[0] if type(told) is TensorType else results)
                self._formulas.describe(node, [work], list(stand_ins.values()), results)
                done = Done((facts.name,), node.flops, node.gradients, node.allocated_bytes)
            except Exception as error:  # noqa: BLE001 (a formula may be the user's code)
                self._formulas.fail(facts, error)
            self._known[key] = done
        return self._known[key]

    def run(
        self,
        function: Callable[..., Any],
        given: Given,
        *,
        module: tuple[torch.nn.Module, list[tuple[torch.Tensor, Slot]]] | None = None,
    ) -> Done | None:
        """Return what an operation does; None where its arguments do not tell, or it raises.

        Args:
            function: The operation.
            given: What it is given.
            module: The module whose forward it is, and its tensors with their slots; None for none.
        """
        slots: list[Slot] = []
        try:
            key = (
                id(function) if module is None else _key_of_module(*module, slots),
                _key_of(given, slots),
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
                known = self._run(function, given, module, on_meta=on_meta)
            except Exception:  # noqa: BLE001
                known = None
            self._known[key] = known
        return known  # type: ignore[return-value]

    def _run(
        self,
        function: Callable[..., Any],
        given: Given,
        module: Any,
        *,
        on_meta: bool,
    ) -> Done:
        called = str(function if module is None else type(module[0]))
        asks = _BY_DEVICE.search(called) or (module is not None and _ON_ANY_DEVICE not in called)
        # What is the same on each device needs no stand-in that pretends to be on one.
        device = None if asks and not on_meta else "meta"
        node = Node("", "")
        with ExitStack() as stack:
            if device is None:
                self._mode = self._mode or fake_mode()
                stack.enter_context(quiet_fake_mode())
                stack.enter_context(self._mode)
            stack.enter_context(torch.no_grad())
            stand_ins: dict[Slot, torch.Tensor] = {}
            args, kwargs = _with(given, stand_ins, device)
            if module is not None:
                # The module stays as it is.
                memo = {id(tensor): _with(slot, stand_ins, device) for tensor, slot in module[1]}
                function = copy.deepcopy(module[0], memo).forward
            read = list(stand_ins.values())
            with _Kernels(self._formulas) as kernels:
                result = function(*args, **kwargs)
            results = list(leaves_in(result, torch.Tensor))
            node.kernels = kernels.names
            self._formulas.describe(node, kernels.work, read, results)
        told = type_nest(result)
        if device is not None:
            # It runs where the first tensor is that it reads.
            own = next((slot.type.device for slot in stand_ins), "cpu")
            told = replaced(told, TensorType, lambda typed: typed._replace(device=own))
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
    told = {name: held for name, held in vars(module).items() if name not in _OF_EVERY_MODULE}
    if not all(map(_is_plain, told.values())):
        return id(module)
    return kind, _key_of(told, slots), _key_of([slot for _, slot in own], slots)


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


def gives_tensor(facts: KernelFacts) -> bool:
    """Tell whether a tensor is among what an operator gives."""
    schema = schema_of(facts.kernel)
    return schema is None or any("Tensor" in str(result.type) for result in schema.returns)


def written_slots(facts: KernelFacts, given: Given) -> list[Slot]:
    """Return the slots into which an operator writes, as its schema tells."""
    if not facts.writes or (facts.flag is not None and not any(given[0][facts.flag :][:1])):
        return []
    arguments = [_argument(given, position, name) for position, name in facts.writes]
    return list(dict.fromkeys(slots_in(arguments)))


def _argument(given: Given, position: int, name: str) -> Held:
    args, kwargs = given
    return args[position] if position < len(args) else kwargs.get(name)


@functools.lru_cache(maxsize=4096)
def _shown_by(facts: KernelFacts) -> tuple[tuple[int, str] | None, ...]:
    """Return for each result of an operator the argument whose memory it may show.

    Returns:
        Position and name of the argument; None for a result with a memory of its own.
    """
    schema = schema_of(facts.kernel)
    shown: list[tuple[int, str] | None] = []
    for result in () if schema is None else schema.returns:
        alias = result.alias_info
        # What is "*" after may be seen in any result: those of `split`.
        sets = set() if alias is None else set(alias.before_set) or {"*"}
        among = [
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None
            and sets & {*argument.alias_info.before_set, *argument.alias_info.after_set}
        ]
        shown.append(among[0] if among else None)
    return tuple(shown)


def shown_slots(facts: KernelFacts, given: Given, told: Any) -> dict[int, Slot]:
    """Return for each tensor that an operator gives, by position, whose memory it shows."""
    shown = _shown_by(facts)
    found: dict[int, Slot] = {}
    for at, argument in enumerate(shown):
        if argument is not None:
            slot = next(slots_in(_argument(given, *argument)), None)
            if slot is not None:
                # One result may be a list of views: that of `split`.
                count = len(list(types_in(told))) if len(shown) == 1 else 0
                found.update(dict.fromkeys(range(count) if count else [at], slot))
    return found
