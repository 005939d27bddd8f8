"""Counts the FLOPs of kernels: by torch's formulas, a user's own, or ours where both lack one.

`torch.utils.flop_counter.register_flop_formula` registers a user's own. What computes and
has no formula is told as such, with its name: it never counts as nothing without a word.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.utils import flop_counter

from tbscope.ir.graph import Gradient, Node
from tbscope.sources.torch.arithmetic import computes
from tbscope.sources.torch.formulas import (
    CLOSED_FORMS,
    FORMULAS,
    Formula,
    KernelWork,
    attention_work,
)
from tbscope.sources.torch.internals import (
    flop_formula,
    memory_keys,
    plain_size,
    storage_key,
    without_functions,
)
from tbscope.sources.torch.literals import collect_tensors
from tbscope.sources.torch.operations import KernelFacts

__all__ = ["Copies", "Formulas"]

NO_FORMULA = "torch has no formula for it, and none was registered"


class Formulas(dict[KernelFacts, Formula | None]):
    """The formula of each kernel that a run has met; None for one that has none.

    Args:
        uncounted: Where each kernel that computes and has none is told, with the reason.

    Attributes:
        allocates: By the name of each kernel whether its results are tensors of their own;
            None where that depends.
    """

    def __init__(self, uncounted: dict[str, str]) -> None:
        super().__init__()
        self.uncounted = uncounted
        self.allocates: dict[str, bool | None] = {}

    def __missing__(self, facts: KernelFacts) -> Formula | None:
        formula = _formula_of(facts)
        if formula is None and computes(facts):
            self.uncounted[facts.name] = NO_FORMULA
        self.allocates[facts.name] = None if facts.writes else facts.makes_tensor
        self[facts] = formula
        return formula

    def fail(self, facts: KernelFacts, error: Exception) -> None:
        """Take note of a formula that raised: it may be the user's code."""
        reason = f"its formula raised {type(error).__name__}: {error}"
        self.uncounted.setdefault(facts.name, reason.replace("\n", " "))

    def describe(
        self,
        node: Node,
        work: list[KernelWork],
        read: list[torch.Tensor],
        results: list[torch.Tensor],
    ) -> None:
        """Set the FLOPs of a node from its kernels, and the size of the memory of its results.

        Args:
            node: The node, of which the kernels are known.
            work: The work of the kernels that have a formula.
            read: The tensors among the operation's arguments.
            results: The tensors that it returned.
        """
        kernels = node.kernels
        if not work:
            # Most operations are of one kernel, which tells all by its name.
            if len(kernels) == 1:
                kernel = kernels[0]
                allocates = self.allocates.get(kernel)
                if allocates is not None:
                    if allocates:
                        node.allocated_bytes = _number(_size_bytes(results))
                    if kernel not in self.uncounted or not _any_floats(results):
                        node.flops = 0
                    return
            if self.uncounted.keys().isdisjoint(kernels) or not _any_floats(results):
                node.flops = 0
            if read and len(results) == 1 and results[0] is read[0]:
                # What it gives was there before.
                return
        keys = memory_keys(read)
        if work:
            node.flops = _number(
                work[0][0] if len(work) == 1 else sum([flops for flops, _ in work])
            )
            held: dict[int | None, tuple[int, ...]] = {}
            for place, key in enumerate(keys):
                held[key] = (*held[key], place) if key in held else (place,)
            node.gradients = _gradients(work, held, tuple(range(len(read))))
        known = {None, *keys}
        for tensor, key in zip(results, memory_keys(results), strict=True):
            if key not in known:
                known.add(key)
                node.allocated_bytes += _number(tensor.untyped_storage().nbytes())


def _number(count: Any) -> int:
    """Return FLOPs or bytes as a number; of a symbolic one the number that it stands for now."""
    return count if type(count) is int else plain_size(count) or 0


def _gradients(
    work: list[KernelWork], held: dict[int | None, tuple[int, ...]], every: tuple[int, ...]
) -> tuple[Gradient, ...]:
    """Return the parts of the backward pass, each with the node's inputs that ask for it.

    Args:
        work: The work of the node's kernels.
        held: Which inputs are in each storage.
        every: All inputs: what a kernel made on the way may come from any of them.
    """
    return tuple(
        [
            _new_gradient(
                (
                    _number(flops),
                    held.get(keys[0], every) if len(keys) == 1 else _of(keys, held, every),
                )
            )
            for _, parts in work
            for flops, keys in parts
        ]
    )


def _of(
    keys: tuple[int | None, ...], held: dict[int | None, tuple[int, ...]], every: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the inputs in some storages; all of them, where one holds none."""
    if not all(key in held for key in keys):
        return every
    return tuple([place for key in keys for place in held[key]])


class Copies(dict[int | None, int | None]):
    """Which storages hold copies, and of what, inside of one operation.

    A product may read a copy of what the operation was given, laid out in another way.
    """

    def add(self, original: Any, copy: torch.Tensor) -> None:
        """Remember a copy; none of a number, as which torch hands on what holds just one."""
        if not isinstance(original, torch.Tensor):
            return
        key = storage_key(original)
        self[storage_key(copy)] = self.get(key, key)

    def forget(self, result: Any) -> None:
        """Forget copies where something else stands now: storages are used again."""
        for tensor in collect_tensors(result, []):
            self.pop(storage_key(tensor), None)

    def trace(self, work: KernelWork) -> KernelWork:
        """Return the work with the originals in place of the copies that it read."""
        flops, parts = work
        return flops, [(cost, tuple([self.get(key, key) for key in keys])) for cost, keys in parts]


# As `Gradient(flops, inputs)`, in a third of the time.
_new_gradient = partial(tuple.__new__, Gradient)


def _size_bytes(tensors: list[torch.Tensor]) -> int:
    """Return the bytes of the storages of tensors; a tensor without storage counts as 0."""
    if len(tensors) > 1:
        storages = {storage_key(tensor): tensor for tensor in tensors}
        storages.pop(None, None)
        return sum([tensor.untyped_storage().nbytes() for tensor in storages.values()])
    try:
        return sum([tensor.untyped_storage().nbytes() for tensor in tensors])
    except (RuntimeError, NotImplementedError):
        return 0


def _any_floats(tensors: list[torch.Tensor]) -> bool:
    """Tell whether one holds more than integers: floats, or what stands for them."""
    for tensor in tensors:
        dtype = tensor.dtype
        if dtype.is_floating_point or dtype.is_complex or tensor.is_quantized:
            return True
    return False


def _formula_of(facts: KernelFacts) -> Formula | None:
    formula = flop_formula(facts.kernel)
    if formula is None:
        return FORMULAS.get(facts.name)
    if formula.__module__ == flop_counter.__name__ and facts.name in CLOSED_FORMS:
        return CLOSED_FORMS[facts.name]
    name = facts.name

    def work(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> KernelWork:
        # It may look into tensors that hold lengths: that is no part of the model.
        with without_functions():
            flops = int(formula(*args, **kwargs, out_val=result))
        return _guessed(flops, name, args)

    return work


def _guessed(flops: int, name: str, args: tuple[Any, ...]) -> KernelWork:
    """Guess the work of a kernel of which only the forward pass is known.

    Attention is known to compute its scores anew. Of any other it is taken that it does
    products, which have two gradients of their own size.
    """
    if "backward" in name:
        return flops, []
    operands = collect_tensors(args, [])
    if "attention" in name:
        return attention_work(flops, operands[:3])
    return flops, [(2 * flops, tuple(map(storage_key, operands)))]
