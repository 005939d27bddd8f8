"""What torch calls its operations, and what they write into.

Names as the user wrote them (`linear`, `add`, `setitem`), and from the schemas
of the ATen kernels the arguments that each one mutates.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tbscope.sources.torch.communication import exchange_of
from tbscope.sources.torch.internals import (
    MOVES,
    is_higher_order,
    is_only_composite,
    operator_name,
    schema_of,
)
from tbscope.sources.torch.literals import collect_tensors

__all__ = [
    "ASKS_GRADIENT",
    "COPIES_DEEP",
    "CUTS_UNSEEN",
    "KERNELS",
    "LOOPS",
    "QUESTIONS",
    "RANDOM",
    "READS",
    "SETS_GRADIENT",
    "SETTERS",
    "SET_DATA",
    "KernelFacts",
    "body_name",
    "kernel_facts",
    "operation_name",
]

READS = frozenset(
    {
        "bool",
        "complex",
        "dlpack",
        "float",
        "index",
        "int",
        "is_nonzero",
        "item",
        "numpy",
        "tolist",
        "array",
        "equal",
        "allclose",
    }
)
"""Operations that hand the content of a tensor to Python."""

_tensor: Any = torch.Tensor
SET_DATA: Any = _tensor.data.__set__
"""What gives a tensor the content of another one (`weight.data = made`)."""

SETTERS: frozenset[Any] = frozenset(
    {
        _tensor.grad.__get__,
        _tensor.grad.__set__,
        _tensor.grad.__delete__,
        SET_DATA,
        _tensor.requires_grad.__set__,
        _tensor.requires_grad_,
        MOVES,
    }
)
"""What changes a tensor and is no operation; who takes a gradient may write into it."""


SETS_GRADIENT: Any = _tensor.grad.__set__
"""What gives a tensor its gradient where a script does: `weight.grad = ...`."""

ASKS_GRADIENT: Any = _tensor.grad.__get__
"""What hands out the gradient of a tensor: `weight.grad`."""

COPIES_DEEP: Any = torch.Tensor.__deepcopy__
"""What copies a tensor for `copy.deepcopy`; its memo has the copies that it made before."""

QUESTIONS: frozenset[Any] = frozenset(
    {
        *(
            getattr(torch.Tensor, name).__get__
            for name in (
                *("device", "dtype", "is_cpu", "is_cuda", "is_leaf", "is_meta", "is_nested"),
                *("is_quantized", "is_sparse", "layout", "ndim", "requires_grad", "shape"),
            )
        ),
        torch.is_complex,
        torch.is_floating_point,
    }
)
"""What is asked of one tensor and told by itself: no kernel runs, and its content is not read.

An optimizer asks seven such questions of each parameter, beside nine operations.
"""


CUTS_UNSEEN = frozenset({"detach_"})
"""Operations that change the way of gradients alone: of their kernels no mode is told."""

# Schemas that do not tell what the kernel writes: by name, the positions that are
# written, and the position of the flag that says whether they are (None: always).
# Source: aten/src/ATen/native/native_functions.yaml and native/Normalization.cpp.
_SILENT_WRITES: dict[str, tuple[tuple[int, ...], int | None]] = {
    "aten::native_batch_norm": ((3, 4), 5),
    "aten::cudnn_batch_norm": ((3, 4), 5),
    "aten::miopen_batch_norm": ((3, 4), 5),
    "aten::batch_norm_update_stats": ((1, 2), None),
    "aten::batch_norm_gather_stats": ((3, 4), None),
    "aten::batch_norm_gather_stats_with_counts": ((3, 4), None),
}


# What is asked of a tensor, and not of its values: a wrapper that answers by itself is told of it.
_QUESTIONS = frozenset(
    f"aten::{name}"
    for name in (
        *("dim", "layout", "numel", "size", "storage_offset", "stride"),
        *("sym_is_contiguous", "sym_numel", "sym_size", "sym_storage_offset", "sym_stride"),
        *("is_contiguous", "is_non_overlapping_and_dense", "is_strides_like_format"),
    )
)
_COPIES = frozenset({"aten::clone", "aten::_to_copy"})
# Views that are told to autograd as none.
_SILENT_VIEWS = frozenset({"aten::_unsafe_view"})


class KernelFacts:
    """What the schema of one kernel tells.

    Attributes:
        kernel: The kernel.
        composite: Whether it is made of others, which alone tell what they write.
        copies: Whether it returns its first argument in another place or type.
        higher_order: Whether it takes functions (`cond`).
        name: The name with its namespace (`aten::addmm`).
        label: The name without namespace and overload (`addmm`).
        writes: Position and name of each argument that it mutates.
        writes_first: Whether that is the first one alone, in each call.
        filled: The names of those that it fills and does not read (`out`).
        flag: The position of the argument that says whether it writes; None: it does.
        makes_tensor: Whether it returns a tensor that is no view of its arguments.
        native: Whether it is one of torch's own.
        usual: Whether it neither copies nor communicates.
        query: Whether it computes nothing (`prim::device`, `aten::sym_size`): a wrapper's C++
            side asks so what its Python side is. Marks for a profiler do not compute either.
        exchange: How it communicates with other ranks; None for any other.
    """

    __slots__ = (
        "composite",
        "copies",
        "exchange",
        "filled",
        "flag",
        "higher_order",
        "kernel",
        "label",
        "makes_tensor",
        "name",
        "native",
        "query",
        "usual",
        "writes",
        "writes_first",
    )

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.higher_order = is_higher_order(kernel)
        schema = schema_of(kernel)
        self.composite = schema is not None and is_only_composite(kernel)
        name = schema.name if schema is not None else _higher_order_name(kernel)
        self.name: str = name
        self.label = name.rpartition("::")[2]
        self.native = name.startswith("aten::")
        self.query = name.startswith(("prim::", "profiler::")) or name in _QUESTIONS
        self.copies = name in _COPIES
        self.writes: tuple[tuple[int, str], ...] = ()
        self.writes_first = False
        self.filled: frozenset[str] = frozenset()
        self.flag: int | None = None
        self.makes_tensor = schema is None
        self.exchange = exchange_of(name)
        self.usual = self.exchange is None and not self.copies
        if schema is None:
            return
        arguments = schema.arguments
        self.makes_tensor = _makes_tensor(name, schema)
        written = [
            (position, argument)
            for position, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.writes = tuple((position, argument.name) for position, argument in written)
        self.filled = frozenset(argument.name for _, argument in written if argument.is_out)
        silent = _SILENT_WRITES.get(name)
        if silent and not self.writes:
            positions, self.flag = silent
            self.writes = tuple((position, arguments[position].name) for position in positions)
        if self.exchange is not None and self.exchange.taken and not self.writes:
            # The schemas of c10d do not tell what they fill.
            names = [argument.name for argument in arguments]
            self.writes = ((names.index(self.exchange.taken), self.exchange.taken),)
        self.writes_first = [place for place, _ in self.writes] == [0] and self.flag is None

    def written(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the tensors into which the kernel writes when it is called with these."""
        if self.flag is not None and not (len(args) > self.flag and args[self.flag]):
            return []
        found: list[torch.Tensor] = []
        for position, name in self.writes:
            given = args[position] if position < len(args) else kwargs.get(name)
            if type(given) is torch.Tensor:
                found.append(given)
            else:
                collect_tensors(given, found)
        return found


def _makes_tensor(name: str, schema: Any) -> bool:
    """Tell whether a schema returns, or writes into, a tensor that is no view of another."""
    if name in _SILENT_VIEWS:
        return False
    returns = schema.returns
    if not returns:
        return any(argument.alias_info is not None for argument in schema.arguments)
    return any(
        "Tensor" in str(given.type) and (given.alias_info is None or given.alias_info.is_write)
        for given in returns
    )


def _higher_order_name(kernel: Any) -> str:
    name = kernel.name() if callable(getattr(kernel, "name", None)) else str(kernel)
    return f"higher_order::{name}"


# By identity, as operators hash in Python; the facts hold the kernel, so it stays its own.
KERNELS: dict[int, KernelFacts] = {}
"""The facts of the kernels met so far, for whoever asks at every one of them."""

LOOPS = frozenset({"while_loop"})
"""The operations that ask one function, before each turn of another, whether that runs again."""

RANDOM: set[str] = set()
"""The names of the kernels met so far that draw random numbers, or may be told to."""

_SEEDED = torch.Tag.nondeterministic_seeded
# They bear the tag of the family that they belong to.
_NOT_RANDOM = frozenset({"aten::_fused_sdp_choice", "aten::_nested_tensor_softmax_with_shape"})


def kernel_facts(kernel: Any) -> KernelFacts:
    """Return the facts of a kernel, read from its schema the first time."""
    facts = KERNELS.get(id(kernel))
    if facts is None:
        facts = KERNELS[id(kernel)] = KernelFacts(kernel)
        if _SEEDED in getattr(kernel, "tags", ()) and facts.name not in _NOT_RANDOM:
            RANDOM.add(facts.name)
    return facts


def operation_name(function: Callable[..., Any], *, as_kernel: bool = False) -> str:
    """Return the name of a torch function as its user writes it.

    `torch.nn.functional.linear` is `linear`, `Tensor.__add__` is `add`, `x[i] = v` is
    `setitem`, the getter of `Tensor.T` is `T`; in-place ones keep their `_` (`add_`).

    Args:
        function: The function.
        as_kernel: Whether a kernel that is called directly is called as it is, `_softmax`.
    """
    name = getattr(function, "__name__", None)
    if name == "__get__":
        name = getattr(getattr(function, "__self__", None), "__name__", name)
    direct = name is None or "." in name
    if name is None or direct:
        name = _overload_name(function)
    if name.startswith("__") and name.endswith("__") and len(name) > 4:
        name = name[2:-2]
        if name[0] == "i" and name[1:] in _TWO_SIDED:
            return f"{name[1:]}_"
        if name[0] == "r" and name[1:] in _TWO_SIDED:
            return name[1:]
        return name
    return name if direct and as_kernel else name.lstrip("_") or name


_TWO_SIDED = frozenset(
    {
        *("add", "sub", "mul", "truediv", "floordiv", "div", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift"),
    }
)


def body_name(function: Callable[..., Any]) -> str:
    """Return the name of a function that an operator runs, as a scope shows it."""
    name = getattr(function, "__name__", None) or type(function).__name__
    return "body" if name == "<lambda>" else str(name)


def _overload_name(function: Any) -> str:
    """Return the name of an operator that is called directly (`torch.ops.aten.relu.default`)."""
    schema = schema_of(function)
    if schema is not None:
        return str(schema.name).rpartition("::")[2]
    named = operator_name(function)
    if named is not None:
        return named.rpartition("::")[2].partition(".")[0]
    name = getattr(function, "__name__", None) or type(function).__name__
    return name.partition(".")[0]
