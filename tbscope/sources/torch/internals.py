"""The private parts of torch that tbscope relies on, each named here and nowhere else.

torch promises nothing about them. Each has a fallback that does less, or an error
that tells which part is missing from this torch.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import parameter as _parameter
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils import _python_dispatch, _pytree, flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from tbscope.errors import TraceError

__all__ = [
    "UNINITIALIZED",
    "DispatchMode",
    "batch_dimension",
    "call_method_name",
    "default_device",
    "fake_mode",
    "flattened",
    "flop_formula",
    "function_modes",
    "functional_calls",
    "functorch_inner",
    "in_forward_mode",
    "in_functorch",
    "is_being_traced",
    "is_fake",
    "is_higher_order",
    "nested_lengths",
    "outside_modes",
    "parts_of",
    "quiet_fake_mode",
    "map_tensors",
    "operator_name",
    "prepares_lazily",
    "schema_of",
    "set_version",
    "storage_key",
    "uncompiled",
    "version_of",
    "without_functions",
]


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode for kernels that takes operators with functions as they are.

    It keeps torch from importing all of `torch._dynamo` to wrap it, where torch asks.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


UNINITIALIZED: tuple[type, ...] = tuple(
    filter(None, (getattr(_parameter, "UninitializedTensorMixin", None),))
)
"""The classes of parameters and buffers that a lazy module has not made yet."""

# Ends the hold of function modes and of `__torch_function__` for a block.
without_functions: Any = getattr(torch._C, "DisableTorchFunction", None)
if without_functions is None:  # The public one leaves modes alone: slower, and no less right.
    without_functions = torch._C.DisableTorchFunctionSubclass

_functorch: Any = getattr(torch._C, "_functorch", None)
_no_dispatch: Any = getattr(torch._C, "_DisableTorchDispatch", None)
_set_versions: Any = getattr(torch._C._autograd, "_unsafe_set_version_counter", None)


def call_method_name() -> str:
    """Return the method of `torch.nn.Module` through which every call of a module goes.

    `_call_impl` is private but cheap to replace; the public `__call__` is a slot, so
    replacing it makes Python update every subclass. Where the compiler is loaded, a
    module may hold its own copy of the private one, so the public one it is; the same
    where torch has no such private method.
    """
    if "torch._dynamo" in sys.modules or not hasattr(torch.nn.Module, "_call_impl"):
        return "__call__"
    return "_call_impl"


def storage_key(tensor: torch.Tensor) -> int | None:
    """Return the identity of a tensor's storage while it lives; None for one without storage."""
    try:
        key: int = tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        # Sparse, opaque and functorch's tensors have no storage of their own.
        return None
    return key


@contextmanager
def outside_modes() -> Iterator[None]:
    """Run a block on plain tensors unseen by function modes and dispatch modes."""
    silenced: AbstractContextManager[Any] = (
        _python_dispatch._disable_current_modes() if _no_dispatch is None else _no_dispatch()
    )
    with without_functions(), silenced:
        yield


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the counter by which autograd notices writes; left as it is where torch cannot."""
    if _set_versions is not None:
        _set_versions((tensor,), (version,))


def flop_formula(kernel: Any) -> Callable[..., Any] | None:
    """Return the FLOPs formula that torch, or a user of torch, has registered for a kernel.

    The formula takes the kernel's arguments, and its result as `out_val`. None where there is
    none; all are gone where torch keeps them elsewhere.
    """
    registry: dict[Any, Callable[..., Any]] = getattr(flop_counter, "flop_registry", {})
    return registry.get(getattr(kernel, "overloadpacket", kernel))


def nested_lengths(tensor: torch.Tensor) -> list[int] | None:
    """Return the length of each sequence in a nested tensor; None for any other tensor."""
    if not tensor.is_nested:
        return None
    if tensor.layout is torch.jagged:
        offsets: torch.Tensor = getattr(tensor, "offsets")()  # noqa: B009 (a subclass has it)
        return [int(length) for length in offsets.diff().tolist()]
    return [int(sizes[0]) for sizes in tensor._nested_tensor_size().tolist()]


def flattened(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that a wrapper subclass holds; none for any other tensor."""
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is None:
        return []
    held = [getattr(tensor, name, None) for name in flatten(tensor)[0]]
    return [inner for inner in held if isinstance(inner, torch.Tensor)]


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that hold a tensor's content; none if it has a storage of its own."""
    wrapped = functorch_inner(tensor)
    if wrapped is not None:
        return [wrapped]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return flattened(tensor)


def function_modes() -> int:
    """Return how many function modes are active in this thread; `maxsize` if torch hides it.

    A caller takes a number above its own for somebody else's mode, and stays out of the way.
    """
    count = getattr(torch._C, "_len_torch_function_stack", None)
    return count() if count is not None else sys.maxsize


def fake_mode() -> Any:
    """Return a mode in which tensors have shapes and no content.

    Raises:
        TraceError: This torch has none.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError as error:
        raise TraceError(
            "fake=True needs fake tensors",
            why=f"torch {torch.__version__} has no torch._subclasses.fake_tensor",
            fix="move the model and its inputs to the device 'meta' instead",
        ) from error
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def quiet_fake_mode() -> Iterator[None]:
    """Have fake tensors not log what they raise, during a block; nobody else's logs change."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def functorch_inner(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor inside of a wrapper of `vmap`, `grad` or `jvp`; None for any other."""
    if _functorch is None or not _functorch.is_functorch_wrapped_tensor(tensor):
        return None
    inner: torch.Tensor = _functorch.get_unwrapped(tensor)
    return inner


def batch_dimension(tensor: torch.Tensor) -> int | None:
    """Return the dimension that `vmap` hides in one of its wrappers; None for any other tensor."""
    if _functorch is None or not _functorch.is_batchedtensor(tensor):
        return None
    dimension: int = _functorch.maybe_get_bdim(tensor)
    return dimension


def is_fake(kind: type) -> bool:
    """Tell whether a class is one of tensors that have a shape and no content."""
    fake_tensor = sys.modules.get("torch._subclasses.fake_tensor")
    return fake_tensor is not None and issubclass(kind, fake_tensor.FakeTensor)


def functional_calls() -> tuple[Any, str] | None:
    """Return the module and the name of the function behind each form of `functional_call`.

    It puts the tensors that it was given in the place of a module's own, calls the module,
    and puts its own back. None where torch has no such function.
    """
    home = torch.nn.utils.stateless
    return (home, "_functional_call") if hasattr(home, "_functional_call") else None


def in_functorch() -> bool:
    """Tell whether code runs inside of `vmap`, `grad`, `jvp` or the like."""
    return _functorch is not None and _functorch.peek_interpreter_stack() is not None


def in_forward_mode() -> bool:
    """Tell whether tangents are computed beside the values (`forward_ad`, `jvp`), unseen by modes.

    True where torch hides it.
    """
    return getattr(forward_ad, "_current_level", 0) >= 0


def is_higher_order(function: Any) -> bool:
    """Tell whether a function is an operator that takes functions (`cond`, `scan`)."""
    return isinstance(function, torch._ops.HigherOrderOperator)


def is_being_traced() -> bool:
    """Tell whether code runs on stand-ins for tensors, to make a graph of it (`make_fx`)."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def default_device() -> torch.device | None:
    """Return the device set by `torch.set_default_device`; None where none was set."""
    held = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    context = getattr(held, "device_context", None)
    device: torch.device | None = getattr(context, "device", None)
    return device


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that `torch.compile` wrapped; any other module is returned as it is."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    wrapper = getattr(eval_frame, "OptimizedModule", None)
    while wrapper is not None and isinstance(module, wrapper):
        module = module._modules["_orig_mod"]
    return module


def schema_of(function: Any) -> Any:
    """Return the schema of an ATen operator; None for a function that has none."""
    return getattr(function, "_schema", None)


def operator_name(function: Any) -> str | None:
    """Return the name of an operator without a schema, with its namespace and overload."""
    named = getattr(function, "_qualified_op_name", None) or getattr(function, "_name", None)
    return named if isinstance(named, str) else None


def version_of(tensor: torch.Tensor) -> int:
    """Return the counter by which autograd notices writes."""
    return tensor._version


def prepares_lazily(hook: Any) -> bool:
    """Tell whether a hook is the one by which a lazy module makes its parameters."""
    return getattr(hook, "__func__", None) is LazyModuleMixin._infer_parameters


def map_tensors(change: Callable[[torch.Tensor], Any], nest: Any) -> Any:
    """Return a nest with something else for each tensor in its plain containers."""
    return _pytree.tree_map_only(torch.Tensor, change, nest)
