"""Names, arguments, writes and roles of torch's operations.

Operations have the names that users write (`linear`, `add`, `setitem`). The schemas of ATen
kernels declare the arguments that each kernel writes. Passes read the role of a node and never
the names of kernels: the recorder or importer that creates the node sets its role, from here.
"""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.overrides import get_testing_overrides

from tbscope.ir.nodes import Argument, Nest, Role
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.calling.signatures import positional_in
from tbscope.sources.torch.compat.tensors import (
    MOVES,
    is_higher_order,
    is_only_composite,
    operator_name,
    schema_of,
)
from tbscope.sources.torch.distributed import exchange_of

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
"""Operations that return content of a tensor to Python."""

_tensor: Any = torch.Tensor
SET_DATA: Any = _tensor.data.__set__
"""The setter of `data`, which replaces the content of a tensor (`weight.data = made`)."""

SETTERS: frozenset[object] = frozenset(
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
"""Functions that change a tensor and are no operations.

The getter of `grad` is one of them, since its caller may write into the gradient.
"""


SET_GRADIENT: object = _tensor.grad.__set__
"""The setter of `grad`, for scripts that set gradients themselves: `weight.grad = ...`."""

GET_GRADIENT: object = _tensor.grad.__get__
"""The getter of `grad`: `weight.grad`."""

COPIES_DEEP: object = torch.Tensor.__deepcopy__
"""The method that copies a tensor for `copy.deepcopy`; its memo contains earlier copies."""

METADATA_QUERIES: frozenset[object] = frozenset(
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
"""Metadata queries on one tensor: no kernel runs, and its content is not read.

An optimizer makes seven such queries per parameter, beside nine operations.
"""


UNSEEN_DETACH = frozenset({"detach_"})
"""Operations that only cut gradients: dispatch modes do not see their kernels."""

# Kernels whose schemas declare no writes: by name, the positions of the written arguments, and the
# position of the flag that enables the writes (None: always).
# Source: aten/src/ATen/native/native_functions.yaml and native/Normalization.cpp.
_SILENT_WRITES: dict[str, tuple[tuple[int, ...], int | None]] = {
    "aten::native_batch_norm": ((3, 4), 5),
    "aten::cudnn_batch_norm": ((3, 4), 5),
    "aten::miopen_batch_norm": ((3, 4), 5),
    "aten::batch_norm_update_stats": ((1, 2), None),
    "aten::batch_norm_gather_stats": ((3, 4), None),
    "aten::batch_norm_gather_stats_with_counts": ((3, 4), None),
}


# Kernels that query metadata, not values: torch sends them to wrappers that answer themselves.
_QUESTIONS = frozenset(
    f"aten::{name}"
    for name in (
        *("dim", "layout", "numel", "size", "storage_offset", "stride"),
        *("sym_is_contiguous", "sym_numel", "sym_size", "sym_storage_offset", "sym_stride"),
        *("is_contiguous", "is_non_overlapping_and_dense", "is_strides_like_format"),
    )
)
_COPIES = frozenset({"aten::clone", "aten::_to_copy"})


class KernelInfo:
    """Properties of one kernel, read from its schema.

    Attributes:
        kernel: The kernel.
        composite: Whether it runs only by decomposition into other kernels; only the schemas of
            these declare the writes.
        copies: Whether it copies its first argument, maybe to another device, layout or dtype.
        higher_order: Whether it takes functions (`cond`).
        name: The name with its namespace (`aten::addmm`).
        label: The name without namespace and overload (`addmm`).
        writes: The position and name of each argument that it writes.
        filled: The names of the arguments that it fills and does not read (`out`).
        flag: The position of the argument that enables its writes; None if it always writes.
        makes_tensor: Whether it returns a tensor that is no view of its arguments.
        native: Whether it is in the namespace `aten`.
        query: Whether it computes nothing: a metadata query (`prim::device`, `aten::sym_size`),
            with which the C++ side of a wrapper asks its Python side, or a profiler's mark.
        exchange: Its communication with other ranks; None for a kernel without any.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.higher_order = is_higher_order(kernel)
        schema = schema_of(kernel)
        if schema is None:
            has_name = callable(getattr(kernel, "name", None))
            name = f"higher_order::{kernel.name() if has_name else kernel}"
        else:
            name = schema.name
        arguments = [] if schema is None else schema.arguments
        self.composite = schema is not None and is_only_composite(kernel)
        self.name: str = name
        self.label = name.rpartition("::")[2]
        self.native = name.startswith("aten::")
        self.query = name.startswith(("prim::", "profiler::")) or name in _QUESTIONS
        self.copies = name in _COPIES
        self.exchange = exchange_of(name, schema)
        self.makes_tensor = schema is None or _makes_tensor(name, schema)
        written = [
            (position, argument)
            for position, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.filled = frozenset(argument.name for _, argument in written if argument.is_out)
        positions = tuple(position for position, _ in written)
        self.flag: int | None = None
        if not positions and name in _SILENT_WRITES:
            positions, self.flag = _SILENT_WRITES[name]
        elif not positions and self.exchange is not None and self.exchange.taken:
            # The schemas of c10d do not declare the arguments that they fill.
            names = [argument.name for argument in arguments]
            positions = (names.index(self.exchange.taken),)
        self.writes = tuple((position, arguments[position].name) for position in positions)

    def written(self, args: tuple[Any, ...], kwargs: Mapping[str, object]) -> list[torch.Tensor]:
        """Return the tensors into which the kernel writes in a call with these arguments."""
        if self.flag is not None and not (len(args) > self.flag and args[self.flag]):
            return []
        tensors: list[torch.Tensor] = []
        for position, name in self.writes:
            arg = args[position] if position < len(args) else kwargs.get(name)
            if type(arg) is torch.Tensor:
                tensors.append(arg)
            else:
                collect_tensors(arg, tensors)
        return tensors


def _makes_tensor(name: str, schema: Any) -> bool:
    """Whether a kernel returns, or writes into, a tensor that is no view of another tensor."""
    if name == "aten::_unsafe_view":
        # A view that autograd does not treat as one.
        return False
    returns = schema.returns
    if not returns:
        return any(argument.alias_info is not None for argument in schema.arguments)
    return any(
        "Tensor" in str(result.type) and (result.alias_info is None or result.alias_info.is_write)
        for result in returns
    )


# By `id`, since operators compute their hash in Python. The entry keeps the kernel alive, so that
# the `id` stays unique.
KERNELS: dict[int, KernelInfo] = {}
"""The facts of the kernels seen so far, for direct look-ups at each kernel that runs."""

LOOP_OPERATORS = frozenset({"while_loop"})
"""Higher-order operations that call a condition function before each iteration of a body."""

RANDOM: set[str] = set()
"""The names of the kernels seen so far that draw random numbers, always or on request."""

_SEEDED = torch.Tag.nondeterministic_seeded
# These kernels have the tag of their family, but draw no numbers themselves.
_NOT_RANDOM = frozenset({"aten::_fused_sdp_choice", "aten::_nested_tensor_softmax_with_shape"})


def kernel_info(kernel: object) -> KernelInfo:
    """Return the facts of a kernel, from its schema at the first call and cached afterwards."""
    facts = KERNELS.get(id(kernel))
    if facts is None:
        facts = KERNELS[id(kernel)] = KernelInfo(kernel)
        if _SEEDED in getattr(kernel, "tags", ()) and facts.name not in _NOT_RANDOM:
            RANDOM.add(facts.name)
    return facts


def operation_name(function: Callable[..., object], *, as_kernel: bool = False) -> str:
    """Return the name of a torch function as its user writes it.

    `torch.nn.functional.linear` is `linear`, `Tensor.__add__` is `add`, `x[i] = v` is
    `setitem`, the getter of `Tensor.T` is `T`; in-place ones keep their `_` (`add_`).

    Args:
        function: The function.
        as_kernel: Whether a kernel that is called directly keeps its leading `_` (`_softmax`).
    """
    written: Any = getattr(function, "__name__", None)
    if written == "__get__":
        written = getattr(getattr(function, "__self__", None), "__name__", written)
    is_operator = written is None or "." in written
    if is_operator:
        # An operator that is called directly (`torch.ops.aten.relu.default`).
        full = getattr(schema_of(function), "name", None) or operator_name(function)
        written = (full or written or type(function).__name__).rpartition("::")[2].partition(".")[0]
    name = str(written)
    if name.startswith("__") and name.endswith("__") and len(name) > 4:
        name, plain = name[2:-2], name[3:-2]
        if name[0] in "ir" and hasattr(torch.Tensor, f"__{plain}__"):
            # In-place operators (`__iadd__`), or reflected ones (`__radd__`).
            return f"{plain}_" if name[0] == "i" else plain
        return name
    return name if is_operator and as_kernel else name.lstrip("_") or name


def body_name(function: Callable[..., object]) -> str:
    """Return the name of a function argument of a higher-order operator, as a scope shows it."""
    name = getattr(function, "__name__", None) or type(function).__name__
    return "body" if name == "<lambda>" else str(name)


# Kernels that return a view of a tensor, or its values unchanged.
# Source: aten/src/ATen/native/native_functions.yaml.
_VIEWS = (
    *("view", "_unsafe_view", "reshape", "_reshape_alias", "view_as", "alias", "as_strided"),
    *("t", "transpose", "permute", "movedim", "swapaxes", "swapdims", "numpy_T", "adjoint"),
    *("squeeze", "unsqueeze", "flatten", "unflatten", "expand", "expand_as", "unfold"),
    *("slice", "select", "narrow", "diagonal", "detach", "detach_"),
    *("lift", "lift_fresh"),
    *("view_as_real", "view_as_complex", "_conj", "_neg_view", "conj", "real", "imag"),
    *("resolve_conj", "resolve_neg"),
)
_OF_A_TENSOR: Mapping[str, Role] = {
    **{f"aten::{name}": "view" for name in _VIEWS},
    "aten::_to_copy": "cast",
    "aten::to": "cast",
    "aten::clone": "copy",
    "aten::contiguous": "copy",
    # torch.export's access to an inner tensor of a subclass.
    "export::access_subclass_inner_tensor": "view",
}

# Kernels that create a tensor from numbers alone, equal in every run.
# Source: aten/src/ATen/native/native_functions.yaml, those without a `self`.
_MAKERS = frozenset(
    f"aten::{name}"
    for name in (
        *("arange", "empty", "eye", "full", "linspace", "logspace", "ones", "range", "zeros"),
        *("scalar_tensor", "tril_indices", "triu_indices", "empty_strided", "lift_fresh"),
        *("hann_window", "hamming_window", "blackman_window", "kaiser_window", "lift"),
        *("_to_copy", "detach", "alias"),
    )
)

# An operation whose kernels have several roles gets the last of these.
_RANKS: tuple[Role | None, ...] = ("view", "copy", "cast")
_MAY_DROP = re.compile(r"attention|rnn|lstm|gru")


def role_of(kernels: Sequence[str], *, reads: bool) -> Role | None:
    """Return the role of an operation, or None if it computes something.

    Args:
        kernels: Its kernels by name (`aten::view`).
        reads: Whether it reads a tensor.
    """
    if not kernels:
        return None
    if not reads:
        return "maker" if _MAKERS.issuperset(kernels) else None
    roles = [*map(_OF_A_TENSOR.get, kernels)]
    return None if None in roles else max(roles, key=_RANKS.index)


def is_random(
    kernels: Collection[str], arguments: Iterable[Argument], names: Sequence[str | None]
) -> bool:
    """Whether an operation drew random numbers.

    Fused attention and recurrent layers draw some only in a call with dropout.

    Args:
        kernels: Its kernels by name; `kernel_info` has seen each of them before.
        arguments: Its arguments.
        names: The names of its positional arguments; None for unknown names, and maybe fewer.
    """
    if RANDOM.isdisjoint(kernels):
        return False
    nests: dict[str | None, Nest] = {
        argument.name or (names[position] if position < len(names) else None): argument.nest
        for position, argument in enumerate(arguments)
    }
    if nests.get("training", nests.get("train")) is False:
        return False
    if any(not _MAY_DROP.search(kernel) for kernel in RANDOM.intersection(kernels)):
        return True
    if nests.get("dropout_p"):
        return True
    # The only float argument of a recurrent layer is its dropout, followed by `train`. Overloads
    # differ in names and number of the arguments before them, so the type finds it.
    pairs = pairwise([argument.nest for argument in arguments])
    drops = [dropout > 0 and train is True for dropout, train in pairs if type(dropout) is float]
    return any(drops[:1])


@functools.lru_cache(maxsize=4096)
def positional_names(
    function: Callable[..., object], kinds: tuple[type, ...] = ()
) -> tuple[str | None, ...]:
    """Return the names of a torch function's positional arguments, in order.

    Args:
        function: A function as passed to `__torch_function__`, or an ATen operator.
        kinds: The classes of the positional arguments of a call, to choose among overloads;
            empty for any call.
    Returns:
        The names; None at positions where overloads of the function differ (`Tensor.to` takes a
        dtype, a device or a tensor). Empty for a function without signature and schema.
    """
    schema = schema_of(function)
    if schema is not None:
        return tuple(argument.name for argument in schema.arguments if not argument.kwarg_only)
    documented = positional_in(
        inspect.signature(get_testing_overrides().get(function, lambda: None))
    )
    try:
        # A function that only passes on `*args` (`boolean_dispatch`) has no names of its own;
        # torch's testing override lists them.
        names = positional_in(inspect.signature(function)) or documented
        return tuple(names) or _of_overloads(function, kinds)
    except (TypeError, ValueError):
        # A builtin has no signature: the schemas of its operator have the names, or else torch's
        # testing override.
        return _of_overloads(function, kinds) or tuple(documented)


def add_signature(
    signatures: dict[str, tuple[str | None, ...]],
    name: str,
    function: Callable[..., object],
    kinds: tuple[type, ...] = (),
) -> None:
    """Add the names of an operation's positional arguments to the signatures of a graph.

    If functions or calls of an operation name differ, only names on which all agree remain.
    """
    names = positional_names(function, kinds)
    earlier = signatures.setdefault(name, names)
    if earlier != names:
        signatures[name] = tuple(
            left if left == right else None for left, right in zip(earlier, names, strict=False)
        )


def _of_overloads(
    function: Callable[..., object], kinds: tuple[type, ...]
) -> tuple[str | None, ...]:
    """Return the argument names of the ATen operator with a function's name.

    None at positions where its overloads differ; empty without an operator of this name.
    """
    name = getattr(function, "__name__", "")
    packets = (
        function,
        *(getattr(torch.ops.aten, candidate, None) for candidate in (name, name.strip("_"))),
    )
    packet = next((candidate for candidate in packets if hasattr(candidate, "overloads")), None)
    if packet is None:
        return ()
    names_at: list[set[str]] = []
    schemas = _on_tensors(packet)
    accepting = [schema for schema in schemas if _takes(schema, kinds)]
    # Schemas accept an int for a list of one int, but an overload that takes an int goes first.
    accepting = accepting or [
        schema for schema in schemas if _takes(schema, kinds, alone="List[int]")
    ]
    for schema in accepting or schemas:
        for position, argument in enumerate(schema.arguments):
            if argument.kwarg_only:
                break
            if position == len(names_at):
                names_at.append(set())
            names_at[position].add(_IN_PYTHON.get(argument.name, argument.name))
    return tuple(names.pop() if len(names) == 1 else None for names in names_at)


def _takes(schema: Any, kinds: tuple[type, ...], alone: str = "int") -> bool:
    """Whether an overload accepts positional arguments of some classes.

    Args:
        schema: The schema of the overload.
        kinds: The classes.
        alone: A further declared type that accepts an int.
    """
    arguments = [argument for argument in schema.arguments if not argument.kwarg_only]
    types = [_OPTIONAL.sub(r"\1", str(argument.real_type)) for argument in arguments]
    if len(kinds) > len(types) and types[-1:] == ["List[int]"]:
        # Sizes may be passed one by one: `x.view(2, 3)`.
        types = [*types[:-1], *["int"] * (len(kinds) - len(types) + 1)]
    return (
        len(kinds) <= len(types)
        and all(argument.has_default_value() for argument in arguments[len(kinds) :])
        and all(
            _fits(declared, kind) or (kind is int and declared == alone)
            for declared, kind in zip(types, kinds, strict=False)
        )
    )


def _fits(declared: str, kind: type) -> bool:
    if issubclass(kind, tuple | list):
        return declared.startswith("List[")
    accepted = next(
        (accepted for python_type, accepted in _TAKEN.items() if issubclass(kind, python_type)),
        None,
    )
    return accepted is None or declared in accepted


# Names of arguments in schemas that differ from the names in Python functions.
_IN_PYTHON = {"self": "input", "t": "data"}
_OPTIONAL = re.compile(r"Optional\[(.*)\]")
# By Python class, the declared types in schemas that accept its instances.
_TAKEN: dict[type, tuple[str, ...]] = {
    torch.Tensor: ("Tensor",),
    bool: ("bool", "number"),
    int: ("int", "number", "float"),
    float: ("float", "number"),
    str: ("str", "Device"),
    torch.device: ("Device",),
    torch.dtype: ("ScalarType",),
}


def _on_tensors(packet: Any) -> list[Any]:
    """Return the schemas of the overloads that take tensors; others take numbers and strings.

    Overloads on named dimensions only repeat others, and overloads with `out` are called by
    keyword: both are left out.
    """
    schemas = [schema_of(getattr(packet, overload)) for overload in packet.overloads()]
    schemas = [
        schema
        for schema in schemas
        if "Dimname" not in str(schema)
        and not any(argument.is_out for argument in schema.arguments)
    ]
    on_tensors = [schema for schema in schemas if "Tensor" in str(schema).partition("->")[0]]
    # A function that creates a tensor takes none, and keeps all its overloads.
    return on_tensors or schemas
