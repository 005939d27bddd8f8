"""What torch calls its operations and their arguments, what they write into, and their roles.

Names as the user wrote them (`linear`, `add`, `setitem`), and from the schemas
of the ATen kernels the arguments that each one mutates. A pass asks a node for its role and knows
no name of a kernel; whoever saw the node run says it, and asks here.
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
from tbscope.sources.torch.collectives import exchange_of
from tbscope.sources.torch.compat.tensors import (
    MOVES,
    is_higher_order,
    is_only_composite,
    operator_name,
    schema_of,
)

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
    "add_signature",
    "body_name",
    "is_random",
    "kernel_facts",
    "operation_name",
    "positional_names",
    "role_of",
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
        filled: The names of those that it fills and does not read (`out`).
        flag: The position of the argument that says whether it writes; None: it does.
        makes_tensor: Whether it returns a tensor that is no view of its arguments.
        native: Whether it is one of torch's own.
        query: Whether it computes nothing (`prim::device`, `aten::sym_size`): a wrapper's C++
            side asks so what its Python side is. Marks for a profiler do not compute either.
        exchange: How it communicates with other ranks; None for any other.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.higher_order = is_higher_order(kernel)
        schema = schema_of(kernel)
        if schema is None:
            named = callable(getattr(kernel, "name", None))
            name = f"higher_order::{kernel.name() if named else kernel}"
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
            (place, argument)
            for place, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.filled = frozenset(argument.name for _, argument in written if argument.is_out)
        places = tuple(place for place, _ in written)
        self.flag: int | None = None
        if not places and name in _SILENT_WRITES:
            places, self.flag = _SILENT_WRITES[name]
        elif not places and self.exchange is not None and self.exchange.taken:
            # The schemas of c10d do not tell what they fill.
            names = [argument.name for argument in arguments]
            places = (names.index(self.exchange.taken),)
        self.writes = tuple((place, arguments[place].name) for place in places)

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
    written: Any = getattr(function, "__name__", None)
    if written == "__get__":
        written = getattr(getattr(function, "__self__", None), "__name__", written)
    direct = written is None or "." in written
    if direct:
        # An operator that is called itself (`torch.ops.aten.relu.default`).
        full = getattr(schema_of(function), "name", None) or operator_name(function)
        written = (full or written or type(function).__name__).rpartition("::")[2].partition(".")[0]
    name = str(written)
    if name.startswith("__") and name.endswith("__") and len(name) > 4:
        name, plain = name[2:-2], name[3:-2]
        if name[0] in "ir" and hasattr(torch.Tensor, f"__{plain}__"):
            # In place, or with the tensor on the right.
            return f"{plain}_" if name[0] == "i" else plain
        return name
    return name if direct and as_kernel else name.lstrip("_") or name


def body_name(function: Callable[..., Any]) -> str:
    """Return the name of a function that an operator runs, as a scope shows it."""
    name = getattr(function, "__name__", None) or type(function).__name__
    return "body" if name == "<lambda>" else str(name)


# The kernels that describe one tensor anew, cast it or copy it, and compute nothing of it.
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
    # A tensor inside of one that is made of several, as torch.export tells it.
    "export::access_subclass_inner_tensor": "view",
}

# The kernels of what is made of nothing but numbers, and is the same in every run.
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

# An operation of kernels of several roles has the last of these.
_RANKS: tuple[Role | None, ...] = ("view", "copy", "cast")
_MAY_DROP = re.compile(r"attention|rnn|lstm|gru")


def role_of(kernels: Sequence[str], *, reads: bool) -> Role | None:
    """Return the role of an operation; None for one that computes something.

    Args:
        kernels: Its kernels by name (`aten::view`).
        reads: Whether it reads a tensor.
    """
    if not kernels:
        return None
    if not reads:
        return "maker" if _MAKERS.issuperset(kernels) else None
    if len(kernels) == 1:
        return _OF_A_TENSOR.get(kernels[0])
    roles = [_OF_A_TENSOR.get(kernel) for kernel in kernels]
    return None if None in roles else max(roles, key=_RANKS.index)


def is_random(
    kernels: Collection[str], arguments: Iterable[Argument], names: Sequence[str | None]
) -> bool:
    """Tell whether an operation drew random numbers.

    Not all that can do so each time: fused attention and recurrent layers only if they were
    asked for dropout.

    Args:
        kernels: Its kernels by name, each met before by `kernel_facts`.
        arguments: Its arguments.
        names: The names of its positional arguments, as far as they are known.
    """
    if RANDOM.isdisjoint(kernels):
        return False
    given: dict[str | None, Nest] = {
        argument.name or (names[place] if place < len(names) else None): argument.nest
        for place, argument in enumerate(arguments)
    }
    if given.get("training", given.get("train")) is False:
        return False
    if any(not _MAY_DROP.search(kernel) for kernel in RANDOM.intersection(kernels)):
        return True
    if given.get("dropout_p"):
        return True
    # A recurrent layer has dropout as its one float, before `train`: its overloads differ in the
    # names and the number of the arguments before these.
    pairs = pairwise([argument.nest for argument in arguments])
    drops = [dropout > 0 and train is True for dropout, train in pairs if type(dropout) is float]
    return any(drops[:1])


@functools.lru_cache(maxsize=4096)
def positional_names(
    function: Callable[..., Any], kinds: tuple[type, ...] = ()
) -> tuple[str | None, ...]:
    """Return the names of a torch function's positional arguments, in order.

    Args:
        function: A function as passed to `__torch_function__`, or an ATen operator.
        kinds: The classes of the positional arguments of a call, which choose among overloads;
            empty for any call.
    Returns:
        The names; None at a place where overloads of the function differ, as `Tensor.to`
        takes a dtype, a device or a tensor. Nothing for a function that nobody describes.
    """
    schema = schema_of(function)
    if schema is not None:
        return tuple(argument.name for argument in schema.arguments if not argument.kwarg_only)
    described = positional_in(
        inspect.signature(get_testing_overrides().get(function, lambda: None))
    )
    try:
        # One that hands all on to others has none (`boolean_dispatch`): torch's stand-in tells.
        named = positional_in(inspect.signature(function)) or described
        return tuple(named) or _of_overloads(function, kinds)
    except (TypeError, ValueError):
        # A builtin has no signature: its operator's schemas tell, or else torch's stand-in.
        return _of_overloads(function, kinds) or tuple(described)


def add_signature(
    signatures: dict[str, tuple[str | None, ...]],
    name: str,
    function: Callable[..., Any],
    kinds: tuple[type, ...] = (),
) -> None:
    """Add the names of an operation's positional arguments to those of a graph.

    Where functions or calls of one name differ, it has those names on which they agree.
    """
    names = positional_names(function, kinds)
    known = signatures.setdefault(name, names)
    if known != names:
        signatures[name] = tuple(
            one if one == two else None for one, two in zip(known, names, strict=False)
        )


def _of_overloads(function: Callable[..., Any], kinds: tuple[type, ...]) -> tuple[str | None, ...]:
    """Return the argument names on which the overloads of the ATen operator of that name agree."""
    name = getattr(function, "__name__", "")
    packets = (
        function,
        *(getattr(torch.ops.aten, one, None) for one in (name, name.strip("_"))),
    )
    packet = next((one for one in packets if hasattr(one, "overloads")), None)
    if packet is None:
        return ()
    said: list[set[str]] = []
    schemas = _on_tensors(packet)
    taking = [schema for schema in schemas if _takes(schema, kinds)]
    # An int stands for a list of one only where no overload takes an int.
    taking = taking or [schema for schema in schemas if _takes(schema, kinds, alone="List[int]")]
    for schema in taking or schemas:
        for place, argument in enumerate(schema.arguments):
            if argument.kwarg_only:
                break
            if place == len(said):
                said.append(set())
            said[place].add(_IN_PYTHON.get(argument.name, argument.name))
    return tuple(names.pop() if len(names) == 1 else None for names in said)


def _takes(schema: Any, kinds: tuple[type, ...], alone: str = "int") -> bool:
    """Whether an overload takes positional arguments of these classes, and an int as one type."""
    arguments = [argument for argument in schema.arguments if not argument.kwarg_only]
    types = [_OPTIONAL.sub(r"\1", str(argument.real_type)) for argument in arguments]
    if len(kinds) > len(types) and types[-1:] == ["List[int]"]:
        # Sizes are given one by one.
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
    taken = next((taken for known, taken in _TAKEN.items() if issubclass(kind, known)), None)
    return taken is None or declared in taken


# What schemas name otherwise than the functions in Python.
_IN_PYTHON = {"self": "input", "t": "data"}
_OPTIONAL = re.compile(r"Optional\[(.*)\]")
# By class the types of schemas that take its instances.
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
    """Return the schemas of the overloads on tensors; others are for numbers and strings.

    Those on named dimensions only repeat others, and those that fill what they are given
    (`out`) are called by keyword.
    """
    schemas = [schema_of(getattr(packet, overload)) for overload in packet.overloads()]
    schemas = [
        schema
        for schema in schemas
        if "Dimname" not in str(schema) and not any(each.is_out for each in schema.arguments)
    ]
    on_tensors = [schema for schema in schemas if "Tensor" in str(schema).partition("->")[0]]
    # What makes a tensor takes none.
    return on_tensors or schemas
