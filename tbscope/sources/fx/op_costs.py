"""Costs and effects of operations: their kernels, FLOPs, in-place writes and aliases.

A program records the call of an operation, and nothing of its effects. Each operation therefore
runs here once on fake tensors: tensors without content, on meta or of torch's FakeTensorMode. Equal
operations share the result. Writes and aliases of an operator come from its schema.
"""

import copy
import functools
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from tbscope.ir.graph import Gradient, Node, Role
from tbscope.sources.fx.aliasing import (
    CallArguments,
    Content,
    Slot,
    slots_in,
    tree_replace,
    types_in,
    types_of_metadata,
)
from tbscope.sources.fx.tensor_types import TensorType, Types
from tbscope.sources.torch.calling.hyperparameters import is_plain
from tbscope.sources.torch.calling.pytree import DESCEND, is_walked, leaves_in, rebuilt
from tbscope.sources.torch.compat.tensors import (
    DispatchMode,
    fake_mode,
    is_composite,
    quiet_fake_mode,
    schema_of,
    storage_key,
)
from tbscope.sources.torch.flops import Formulas, KernelWork
from tbscope.sources.torch.operations import KernelInfo, kernel_info, role_of

# Operations for which each device has kernels of its own.
_BY_DEVICE = re.compile(r"attention|lstm|gru|rnn|transformer", re.IGNORECASE)
# Modules of this package do not depend on the device, except those above.
_ON_ANY_DEVICE = "torch.nn.modules."


class OpEffects(NamedTuple):
    """Costs and effects of one operation.

    Attributes:
        kernels: The names of its kernels, in order.
        flops: The FLOPs of its kernels, or None if they are unknown.
        gradients: The computations of its backward pass.
        allocated_bytes: The bytes of its results that share no memory with its arguments.
        written: The positions of the written tensors among the tensors that it reads.
        shows: For each tensor result the position of the tensor whose memory it shares, or None.
        results: The results, with a `TensorType` for each tensor.
        role: The role if it computes nothing.
    """

    kernels: tuple[str, ...] = ()
    flops: int | None = None
    gradients: tuple[Gradient, ...] = ()
    allocated_bytes: int = 0
    written: tuple[int, ...] = ()
    shows: tuple[int | None, ...] = ()
    results: Types = None
    role: Role | None = None


class FakeRunner:
    """Runner of operations on fake tensors.

    Args:
        uncounted: The table to which each kernel is added whose FLOPs are not counted, with the
            reason.
    """

    def __init__(self, uncounted: dict[str, str]) -> None:
        self._formulas = Formulas(uncounted)
        self._uncounted = uncounted
        self._known: dict[object, OpEffects | None] = {}
        self._mode: Any = None

    def done_by(self, facts: KernelInfo, arguments: CallArguments) -> OpEffects | None:
        """Return the costs of an operator, or None if its name and its schema have to suffice."""
        is_run = facts.native and is_composite(facts.kernel)
        if is_run or self._formulas[facts] is not None:
            return self.run(facts.kernel, arguments)
        return None

    def run(
        self,
        function: Callable[..., Any],
        arguments: CallArguments,
        own: Sequence[tuple[torch.Tensor, Slot]] = (),
    ) -> OpEffects | None:
        """Return the costs and effects of an operation, or None if it cannot run on fake tensors.

        Args:
            function: The operation; for the call of a module, the module.
            arguments: The arguments.
            own: The tensors of the module, each with its slot.
        """
        slots: list[Slot] = []
        try:
            key = (
                _key_of_module(function, own, slots)
                if isinstance(function, torch.nn.Module)
                else id(function),
                _key_of(arguments, slots),
            )
            # `self` marks a missing entry: None is an operation that cannot run.
            effects = self._known.get(key, self)
        except (TypeError, RecursionError):
            # An argument is unhashable, or contains itself.
            return None
        for slot in slots:
            if slot.type.stride is None:
                return None
        if effects is self:
            # The operation ran in the program: a kernel that raises here has no implementation
            # without content.
            try:
                on_meta = any(slot.type.device == "meta" for slot in slots)
                effects = self._run(function, arguments, own, on_meta=on_meta)
            except Exception:  # noqa: BLE001
                effects = None
            self._known[key] = effects
        return effects  # type: ignore[return-value]

    def _run(
        self,
        function: Callable[..., Any],
        arguments: CallArguments,
        own: Sequence[tuple[torch.Tensor, Slot]],
        *,
        on_meta: bool,
    ) -> OpEffects:
        module = function if isinstance(function, torch.nn.Module) else None
        class_text = str(function if module is None else type(module))
        by_device = _BY_DEVICE.search(class_text) or (
            module is not None and _ON_ANY_DEVICE not in class_text
        )
        # Operations that do not depend on the device run on meta, without FakeTensorMode.
        device = None if by_device and not on_meta else "meta"
        node = Node("", "")
        with ExitStack() as stack:
            if device is None:
                self._mode = self._mode or fake_mode()
                stack.enter_context(quiet_fake_mode())
                stack.enter_context(self._mode)
            stack.enter_context(torch.no_grad())
            stand_ins: dict[Slot, torch.Tensor] = {}
            args, kwargs = _with(arguments, stand_ins, device)
            if module is not None:
                # A copy of the module runs, so that the module itself does not change.
                memo = {id(tensor): _with(slot, stand_ins, device) for tensor, slot in own}
                function = copy.deepcopy(module, memo).forward
            read = list(stand_ins.values())
            with _Kernels(self._formulas) as kernels:
                result = function(*args, **kwargs)
            results = list(leaves_in(result, torch.Tensor))
            node.kernels = kernels.names
            self._formulas.describe(node, kernels.work, read, results)
        types = types_of_metadata(result)
        if device is not None:
            # Results are on the device of the first tensor that the operation reads.
            first_device = next((slot.type.device for slot in stand_ins), "cpu")
            types = tree_replace(
                types, TensorType, lambda typed: typed._replace(device=first_device)
            )
        places = {storage_key(tensor): index for index, tensor in enumerate(read)}
        written = {places.get(key) for key in kernels.written}
        return OpEffects(
            tuple(kernels.names),
            node.flops,
            node.gradients,
            node.allocated_bytes,
            tuple(sorted(index for index in written if index is not None)),
            tuple([places.get(storage_key(tensor)) for tensor in results]),
            types,
            role_of(kernels.names, reads=bool(read)),
        )

    def by_name(self, facts: KernelInfo, dtypes: list[str]) -> int | None:
        """Return the FLOPs of a kernel on tensors of unknown sizes: 0, or None if unknown."""
        formula = self._formulas[facts]
        if formula is None and facts.name not in self._uncounted:
            return 0
        if not any(name.startswith(("float", "bfloat", "complex")) for name in dtypes):
            return 0
        if formula is not None:
            self._uncounted[facts.name] = "the sizes of what it reads are not known"
        return None


class _Kernels(DispatchMode):  # type: ignore[no-untyped-call]
    """Recorder of the kernels that run in a block."""

    def __init__(self, formulas: Formulas) -> None:
        super().__init__()
        self._formulas = formulas
        self.names: list[str] = []
        self.work: list[KernelWork] = []
        self.written: set[int | None] = set()

    def __torch_dispatch__(
        self, kernel: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        facts = kernel_info(kernel)
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


def _key_of(content: Content, slots: list[Slot]) -> object:
    """Return a key that equal arguments share; append the slots among them to a list."""
    kind = type(content)
    if kind is Slot:
        slots.append(content)
        return content.type, slots.index(content)
    if kind is list or kind is tuple:
        return (kind, *[_key_of(entry, slots) for entry in content])
    if kind is dict:
        return tuple([(key, _key_of(entry, slots)) for key, entry in content.items()])
    if kind is slice:
        # A slice is hashable only from Python 3.12 on.
        return (kind, *[_key_of(end, slots) for end in (content.start, content.stop, content.step)])
    if is_walked(kind):
        # Its class may define any equality, so no other call has an equal key.
        return (object(), *[_key_of(slot, slots) for slot in slots_in(content)])
    return kind, content


def _key_of_module(
    module: torch.nn.Module, own: Sequence[tuple[torch.Tensor, Slot]], slots: list[Slot]
) -> object:
    """Return a key that equal forwards of modules share.

    Layers of torch.nn with equal attributes, and tensors of equal types, do the same.
    """
    kind = type(module)
    if not kind.__module__.startswith(_ON_ANY_DEVICE) or module._modules:
        return id(module)
    attributes = {
        name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE
    }
    if not all(map(is_plain, attributes.values())):
        return id(module)
    return kind, _key_of(attributes, slots), _key_of([slot for _, slot in own], slots)


_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}


def _with(arguments: object, stand_ins: dict[Slot, torch.Tensor], device: str | None) -> Any:
    """Return arguments with a fake tensor for each slot, on the slot's device or on another."""

    def each(entry: object) -> object:
        if type(entry) is torch.device and device is not None:
            return torch.device(device)
        if type(entry) is not Slot:
            return DESCEND if is_walked(type(entry)) else entry
        if entry not in stand_ins:
            tensor: Any = entry.type
            stand_ins[entry] = torch.empty_strided(
                tensor.shape,
                tensor.stride,
                dtype=getattr(torch, tensor.dtype),
                device=device or tensor.device,
                requires_grad=tensor.requires_grad,
            )
        return stand_ins[entry]

    return rebuilt(arguments, each)


def returns_tensor(facts: KernelInfo) -> bool:
    """Whether an operator returns a tensor."""
    schema = schema_of(facts.kernel)
    return schema is None or any("Tensor" in str(result.type) for result in schema.returns)


def written_slots(facts: KernelInfo, call: CallArguments) -> list[Slot]:
    """Return the slots into which an operator writes, from its schema."""
    if not facts.writes or (facts.flag is not None and not any(call[0][facts.flag :][:1])):
        return []
    arguments = [_argument(call, position, name) for position, name in facts.writes]
    return list(dict.fromkeys(slots_in(arguments)))


def _argument(arguments: CallArguments, position: int, name: str) -> Content:
    args, kwargs = arguments
    return args[position] if position < len(args) else kwargs.get(name)


@functools.lru_cache(maxsize=4096)
def _shown_by(facts: KernelInfo) -> tuple[tuple[int, str] | None, ...]:
    """Return for each result of an operator the argument whose memory it may share.

    Returns:
        The position and the name of the argument, or None for a result with memory of its own.
    """
    schema = schema_of(facts.kernel)
    aliased: list[tuple[int, str] | None] = []
    for result in () if schema is None else schema.returns:
        alias = result.alias_info
        # Any result may share the memory of an argument in the set "*", as the results of `split`
        # do.
        sets = set() if alias is None else set(alias.before_set) or {"*"}
        among = [
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None
            and sets & {*argument.alias_info.before_set, *argument.alias_info.after_set}
        ]
        aliased.append(among[0] if among else None)
    return tuple(aliased)


def aliased_slots(facts: KernelInfo, call: CallArguments, types: object) -> dict[int, Slot]:
    """Return the slots whose memory the results of an operator share, by position of the result."""
    arguments = _shown_by(facts)
    slots: dict[int, Slot] = {}
    for index, argument in enumerate(arguments):
        if argument is not None:
            slot = next(slots_in(_argument(call, *argument)), None)
            if slot is not None:
                # A single result may be a list of views, as of `split`.
                count = len(list(types_in(types))) if len(arguments) == 1 else 0
                slots.update(dict.fromkeys(range(count) if count else [index], slot))
    return slots
