"""Operators that TorchScript nodes call: operators of torch, and operations that are evaluated.

Operations on numbers, texts, lists and dicts are evaluated while a graph is read, and are no nodes
of the graph. A result is computed if all arguments have values; a query for the size or dtype of a
tensor is answered if the type of the tensor has the answer. Results without a value are a
`UnknownValue`, which records the tensors on which it depends.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch

from tbscope.ir.graph import Constant
from tbscope.sources.fx.aliasing import CallArguments, Content, Slot, slots_in
from tbscope.sources.fx.op_costs import returns_tensor
from tbscope.sources.torch.compat.tensors import is_dispatched, schema_of
from tbscope.sources.torch.operations import KernelInfo, kernel_info
from tbscope.sources.torchscript.values import (
    Contents,
    UnknownValue,
    dtype_code,
    dtypes_by_code,
    has_slot,
    is_known,
    is_open,
    lowered,
    origins,
)

# These operators accept Python numbers in the place of tensors.
# Source: torch/csrc/utils/python_arg_parser.cpp, should_allow_numbers_as_tensors.
_TAKES_NUMBERS = frozenset(
    name + end
    for name in (
        *("add", "sub", "mul", "div", "divide", "multiply", "subtract", "true_divide"),
        "floor_divide",
    )
    for end in ("", "_")
)


class _SchemaParameter(NamedTuple):
    name: str
    by_keyword: bool
    default: object
    tensor: str
    kind: str


class Operator(NamedTuple):
    """An operator of torch, as TorchScript calls it.

    Attributes:
        target: The operator.
        facts: The facts of its schema.
        parameters: The parameters, in order.
        gives_tensors: Whether a result may be a tensor.
        dispatched: Whether it has kernels, and does not run in TorchScript only.
    """

    target: Any
    facts: KernelInfo
    parameters: tuple[_SchemaParameter, ...]
    gives_tensors: bool
    dispatched: bool

    @property
    def reads_tensors(self) -> bool:
        """Whether a parameter takes tensors."""
        return any(parameter.tensor for parameter in self.parameters)

    def reads_one_of(self, args: Contents) -> bool:
        """Whether an argument of a tensor parameter is a tensor, or contains one."""
        pairs = zip(self.parameters, args, strict=False)
        return any(
            parameter.tensor and (type(content) is Slot or has_slot(content))
            for parameter, content in pairs
        )

    def arguments(self, values: Contents, constant: Callable[[object], Content]) -> CallArguments:
        """Return positional and keyword arguments, without defaults.

        Keyword arguments and trailing positional arguments that equal their default are left out.

        Args:
            values: All arguments of the node, in order.
            constant: Makes a tensor of a number, for a parameter that takes only tensors.
        """
        args: Contents = []
        kwargs: dict[str, Content] = {}
        count = 0
        for parameter, content in zip(self.parameters, values, strict=False):
            arg = content if type(content) is Slot else self._fitting(parameter, content, constant)
            default = parameter.default
            is_default = default is not _NONE and type(default) is type(arg) and default == arg
            if not parameter.by_keyword:
                args.append(arg)
                count = count if is_default else len(args)
            elif not is_default:
                kwargs[parameter.name] = arg
        return args[:count], kwargs

    def on_numbers(self, *values: Content) -> Content:
        """Return the result for numbers and texts; a number takes the place of any tensor."""
        if not schema_of(self.facts.kernel).returns:
            return None
        args, kwargs = self.arguments([*values], functools.partial(torch.tensor, device="cpu"))
        result = self.target(*args, **kwargs)
        return result.item() if isinstance(result, torch.Tensor) else result

    def sampled(self, arguments: CallArguments) -> CallArguments:
        """Return the arguments with a number for each `Constant` whose value changes no shape."""
        args, kwargs = arguments
        if Constant not in map(type, args):
            return arguments
        pairs = zip(self.parameters, args, strict=False)
        return [_sample(parameter, content) for parameter, content in pairs], kwargs

    def _fitting(
        self, parameter: _SchemaParameter, content: Content, constant: Callable[[object], Content]
    ) -> Content:
        kind = type(content)
        if kind is int and parameter.name in _WORDS:
            return _WORDS[parameter.name]().get(content, content)
        if parameter.tensor == "one" and kind in (int, float, bool):
            return content if self.facts.label in _TAKES_NUMBERS else constant(content)
        if parameter.tensor == "many" and kind in (list, tuple):
            content = [
                constant(entry) if type(entry) in (int, float, bool) else entry for entry in content
            ]
        return lowered(content)


_NONE: object = object()


def _sample(parameter: _SchemaParameter, content: Content) -> Content:
    if type(content) is not Constant:
        return content
    if parameter.kind == "number" or parameter.tensor == "one":
        return 1
    # The `index` of `select`: entries at all indices have one shape.
    return 0 if parameter.name == "index" and parameter.kind == "int" else content


# The values of torch that numbers in a script mean, by the name of the parameter.
_WORDS: dict[str, Callable[[], Mapping[int, object]]] = {
    "dtype": dtypes_by_code,
    "layout": lambda: {0: torch.strided, 1: torch.sparse_coo},
    "memory_format": lambda: {
        0: torch.contiguous_format,
        1: torch.preserve_format,
        2: torch.channels_last,
    },
}


@functools.lru_cache(maxsize=4096)
def operator_of(schema: str) -> Operator | None:
    """Return the operator with a schema, or None if torch has none.

    Args:
        schema: The schema of a node (`aten::add.Tensor(Tensor self, ...) -> Tensor`).
    """
    space, _, rest = schema.partition("(")[0].partition("::")
    name, _, overload = rest.partition(".")
    try:
        target = getattr(getattr(getattr(torch.ops, space), name), overload or "default")
    except (AttributeError, RuntimeError):
        return None
    own_schema = schema_of(target)
    if own_schema is None:
        return None
    parameters = tuple(
        _SchemaParameter(
            argument.name,
            bool(argument.kwarg_only),
            argument.default_value if argument.has_default_value() else _NONE,
            _tensors(str(argument.type)),
            str(argument.type),
        )
        for argument in own_schema.arguments
    )
    facts = kernel_info(target)
    return Operator(target, facts, parameters, returns_tensor(facts), is_dispatched(target))


def _tensors(kind: str) -> str:
    if "Tensor" not in kind:
        return ""
    return "many" if kind.startswith(("List", "Optional[List")) else "one"


DATA_READS = frozenset(
    {
        *("aten::Int", "aten::Float", "aten::Bool", "aten::Complex", "aten::IntImplicit"),
        *("aten::FloatImplicit", "aten::ScalarImplicit", "aten::item", "aten::is_nonzero"),
        "prim::tolist",
    }
)
"""Operations that read the content of a tensor as a number or a list."""


_Functions: TypeAlias = dict[str, Callable[..., Content]]

METADATA_QUERIES: _Functions = {
    "aten::size": lambda typed, *at: typed.shape[at[0]] if at else [*typed.shape],
    "aten::dim": lambda typed: len(typed.shape),
    "aten::numel": lambda typed: math.prod(typed.shape),
    "aten::len": lambda typed: typed.shape[0],
    "aten::is_floating_point": lambda typed: getattr(torch, typed.dtype).is_floating_point,
    "prim::dtype": lambda typed: dtype_code(getattr(torch, typed.dtype)),
    "prim::device": lambda typed: torch.device(typed.device),
    "prim::is_cuda": lambda typed: typed.device.startswith("cuda"),
    "prim::is_cpu": lambda typed: typed.device == "cpu",
}
"""Queries for metadata of a tensor, by TorchScript kind: each function answers from a type."""


def answer(kind: str, tensor: Slot, *args: Content) -> Content:
    """Return the answer to one of `METADATA_QUERIES`, or a `UnknownValue` if the type lacks it."""
    try:
        known = METADATA_QUERIES[kind](tensor.type, *args)
    except (TypeError, LookupError, AttributeError):
        known = None
    if known is not None and (type(known) is not list or None not in known):
        return known
    name = "" if tensor.value is None else tensor.value.name
    text = f"{name}.{kind.partition('::')[2]}({', '.join(map(str, args))})"
    return UnknownValue(text, (tensor,))


_IDENTITY = ("aten::__is__", "aten::__isnot__")


def compute(kind: str, args: Contents, operator: Operator | None = None) -> Content:
    """Return the result of an operation, or a `UnknownValue` if it cannot be computed.

    Args:
        kind: The TorchScript kind of the operation (`aten::add`).
        args: The arguments; an operation of `MUTATIONS` changes the list or dict among them.
        operator: Torch's operator for the operation, which computes with numbers and texts.
    """
    if (
        kind in _IDENTITY
        and args[1] is None
        and type(args[0]) is not UnknownValue
        and not any(slot.optional for slot in slots_in(args[0]))
    ):
        return (args[0] is None) is (kind == "aten::__is__")
    is_container = bool(args) and type(args[0]) in (list, tuple, dict)
    function = _ON_CONTAINERS.get(kind) if is_container else None
    if function is not None:
        if is_open(args[0]):
            # An open list with a single tensor: the entry is this tensor, at any index.
            slots = dict.fromkeys(slots_in(args[0])) if kind == "aten::__getitem__" else {}
            return next(iter(slots)) if len(slots) == 1 else _unknown(kind, args)
        if kind in _BY_KEY and not is_known(args[1:2]):
            return _unknown(kind, args)
    elif operator is not None and kind not in MUTATIONS and is_known(args):
        function = operator.on_numbers
    if function is None:
        return _unknown(kind, args)
    try:
        return function(*args)
    except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError):
        return _unknown(kind, args)


def can_compute_mutation(kind: str, args: Contents) -> bool:
    """Whether the content of a list or a dict can be computed after one of `MUTATIONS`.

    Args:
        kind: The TorchScript kind of the change.
        args: The list or dict, and the further arguments.
    """
    container, *others = args
    if is_open(container) or kind not in _ON_CONTAINERS:
        return False
    if kind in _BY_KEY:
        return is_known(others[:1])
    return kind not in _OF_OTHERS or type(others[0]) in (list, tuple, dict)


def _unknown(kind: str, args: Contents) -> UnknownValue:
    label = kind.partition("::")[2].strip("_")
    texts = [str(entry) for entry in args if type(entry) in (UnknownValue, int, float, bool, str)]
    return UnknownValue(f"{label}({', '.join(texts)})", origins(args))


def _slice(nest: Content, start: object = None, end: object = None, step: object = 1) -> Content:
    return nest[slice(start, end, step)]


NUMBER_OPERATIONS = frozenset(
    f"aten::{name}"
    for name in (
        *("add", "sub", "rsub", "mul", "div", "true_divide", "floor_divide", "remainder", "pow"),
        *("neg", "abs", "floor", "ceil", "sqrt", "round", "eq", "ne", "lt", "le", "gt", "ge"),
        *("to", "detach", "clone", "as_tensor"),
    )
)
"""Operators of tensors that a trace calls on sizes, too; their result is then a number."""


def _pop(nest: Content, key: object = -1, *default: Content) -> Content:
    return nest.pop(key, *default) if isinstance(nest, dict) else nest.pop(key)


def _joined(left: Content, right: Content) -> Content:
    if type(left) is not type(right) or isinstance(left, dict):
        raise TypeError("these are not joined")
    return left + right


_ON_CONTAINERS: _Functions = {
    "aten::__getitem__": operator.getitem,
    "aten::slice": _slice,
    "aten::len": len,
    "aten::append": list.append,
    "aten::extend": list.extend,
    "aten::insert": list.insert,
    "aten::_set_item": operator.setitem,
    "aten::__contains__": lambda nest, entry: (
        entry in nest if isinstance(nest, dict) or is_known(nest) else UnknownValue("contains")
    ),
    "aten::pop": _pop,
    "aten::Delete": _pop,
    "aten::get": dict.get,
    "aten::keys": list,
    "aten::values": lambda nest: list(nest.values()),
    "aten::items": lambda nest: list(nest.items()),
    "aten::update": dict.update,
    "aten::copy": lambda nest: nest.copy(),
    "aten::list": list,
    "aten::add": _joined,
    "aten::add_": list.extend,
    "aten::mul": operator.mul,
}

MUTATIONS = frozenset(
    f"aten::{name}"
    for name in (
        *("append", "extend", "insert", "_set_item", "pop", "Delete", "update", "reverse"),
        *("clear", "add_", "sort", "popitem", "setdefault", "remove"),
    )
)
"""Operations that change their first argument, a list or a dict, in place."""

RETURNS_ENTRY = frozenset(f"aten::{name}" for name in ("pop", "popitem", "setdefault"))
"""Those of `MUTATIONS` that return an entry; the others return the list or dict, or nothing."""

# Operations that select an entry by key or index, and those that add another container's entries.
_BY_KEY = frozenset(
    f"aten::{name}"
    for name in ("__getitem__", "_set_item", "insert", "pop", "Delete", "get", "__contains__")
)
_OF_OTHERS = frozenset(f"aten::{name}" for name in ("extend", "add_", "update"))
