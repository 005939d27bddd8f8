"""Operators of torch that TorchScript nodes call, found by schema, and the arguments of a call."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tbscope.ir.graph import Constant
from tbscope.sources.fx.aliasing import CallArguments, Content, Slot
from tbscope.sources.fx.op_costs import returns_tensor
from tbscope.sources.torch.compat.tensors import is_dispatched, schema_of
from tbscope.sources.torch.operations import KernelInfo, kernel_info
from tbscope.sources.torchscript.types import dtype_of
from tbscope.sources.torchscript.values import Contents, has_slot, lowered

__all__ = ["Operator", "operator_of"]

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
    """

    target: Any
    facts: KernelInfo
    parameters: tuple[_SchemaParameter, ...]
    gives_tensors: bool

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
            return _WORDS[parameter.name](content)
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


def _entry_of(table: tuple[object, ...]) -> Callable[[int], object]:
    """Return a function from TorchScript's numbers to entries; other numbers stay as they are."""
    return lambda code: table[code] if 0 <= code < len(table) else code


_WORDS: dict[str, Callable[[int], object]] = {
    "dtype": dtype_of,
    "layout": _entry_of((torch.strided, torch.sparse_coo)),
    "memory_format": _entry_of(
        (torch.contiguous_format, torch.preserve_format, torch.channels_last)
    ),
}


@functools.lru_cache(maxsize=4096)
def operator_of(schema: str) -> Operator | None:
    """Return the operator with a schema, or None if no operator of it runs outside TorchScript.

    Args:
        schema: The schema of a node (`aten::add.Tensor(Tensor self, ...) -> Tensor`).
    """
    space, _, rest = schema.partition("(")[0].partition("::")
    name, _, overload = rest.partition(".")
    if not name:
        return None
    try:
        target = getattr(getattr(getattr(torch.ops, space), name), overload or "default")
    except (AttributeError, RuntimeError):
        return None
    own_schema = schema_of(target)
    if own_schema is None or not is_dispatched(target):
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
    return Operator(target, facts, parameters, returns_tensor(facts))


def _tensors(kind: str) -> str:
    if "Tensor" not in kind:
        return ""
    return "many" if kind.startswith(("List", "Optional[List")) else "one"
