"""The private parts of torch that tell of tensors, nests, operators, and of who watches them.

Those that tell of modules are named in module_internals.py; no other file names any.
torch promises nothing about them. What a version that is supported lacks has a fallback here.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Any, Self

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch, _pytree
from torch.utils import checkpoint as _checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "BACKWARD",
    "GRADIENT_HOOKS",
    "MOVES",
    "RUNS_FOR_ITSELF",
    "DispatchMode",
    "ENOUGH",
    "are_innermost",
    "batch_dimension",
    "class_in_torch",
    "dispatch_modes",
    "fake_mode",
    "filled",
    "flat",
    "flattened",
    "function_modes",
    "functorch_inner",
    "in_forward_mode",
    "in_functorch",
    "innermost_transform",
    "is_being_traced",
    "is_composite",
    "is_only_composite",
    "is_dispatched",
    "is_fake",
    "is_guard",
    "is_higher_order",
    "is_operator",
    "is_of_its_own",
    "is_of_tensors",
    "is_registered",
    "map_leaves",
    "map_tensors",
    "plan_of",
    "jagged_dummy",
    "key_of_storage",
    "jagged_constructors",
    "nested_lengths",
    "outside_modes",
    "parts_of",
    "quiet",
    "quiet_fake_mode",
    "operator_name",
    "plain_size",
    "run_composite",
    "schema_of",
    "set_version",
    "gradient_types",
    "running_node",
    "sequence_number",
    "storage_key",
    "storage_keys_of",
    "version_of",
    "without_functions",
    "without_modes",
]


_C: Any = torch._C

# torch 2.6 to 2.8 want a rule for each operator with functions and each class of modes.
_WANTS_RULES = not hasattr(TorchDispatchMode, "supports_higher_order_operators")


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode for kernels that takes operators with functions as they are.

    It keeps torch from importing all of `torch._dynamo` to wrap it, where torch asks, and from
    noting for the whole process that a mode holds: when modes of two threads end in the order
    in which they began, torch takes one for there for good, and compiles nothing any more.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

        def ask(operator: Any, mode: TorchDispatchMode, *args: Any, **kwargs: Any) -> Any:
            return mode.__torch_dispatch__(operator, (), args, kwargs)  # type: ignore[no-untyped-call]

        # Those imported since the last mode was made have no rule yet.
        for operator in tuple(torch._ops._higher_order_ops.values()) if _WANTS_RULES else ():
            if type(self) not in operator.python_key_table:
                operator.py_impl(type(self))(partial(ask, operator))

    def __enter__(self) -> Self:
        _python_dispatch._push_mode(self)
        return self

    def __exit__(self, *raised: Any) -> None:
        _python_dispatch._pop_mode()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


BACKWARD = "_engine_run_backward"
"""What of `torch.autograd` every backward pass goes through; others may hold the public one."""

running_node: Callable[[], Any] = _C._current_autograd_node
"""Returns the node of autograd's graph that runs in this thread; None for none."""

ENOUGH: type[BaseException] = _checkpoint._StopRecomputationError
"""What a checkpoint raises in an operation that it runs again, once it has all that was saved."""


dispatch_modes: Callable[[], list[Any]] = _python_dispatch._get_current_dispatch_mode_stack
"""Returns the modes for kernels that are active in this thread."""


def gradient_types(node: Any) -> list[tuple[Any, torch.dtype, torch.device]]:
    """Return shape, dtype and device of each gradient that a node of autograd's graph takes.

    Those of one number, where torch tells none.
    """
    told = node._input_metadata
    if not told:
        return [((), torch.float32, torch.device("cpu"))]
    return [(each.shape, each.dtype, each.device) for each in told]


sequence_number: Callable[[], int] = _C._autograd._get_sequence_nr
"""Returns the number that autograd will give to the next node of its graph in this thread."""

MOVES: Any = getattr(torch, "_cudnn_rnn_flatten_weight")  # noqa: B009 (no stub has it)
"""A function that gives the tensors in its first argument another place, and does not say so."""

without_functions: Any = _C.DisableTorchFunction
"""Ends the hold of function modes and of `__torch_function__` for a block."""

_functorch: Any = _C._functorch
_pyfunctorch: Any = sys.modules["torch._functorch.pyfunctorch"]
_jagged: Any = sys.modules["torch.nested._internal.nested_tensor"]
_version_setter: Any = _C._autograd._unsafe_set_version_counter


# Up to 2.10 torch keeps the inputs of a checkpointed function by an operation without a result;
# up to 2.8 its compiler tries all operators out while it is imported, at its first use.
RUNS_FOR_ITSELF: bool = hasattr(_checkpoint, "_NoopSaveInputs")
"""Whether this torch has operations of its own run in the midst of a model's."""


def is_of_its_own(frame: FrameType) -> bool:
    """Tell whether an operation that this Python frame calls is one of torch's own."""
    if frame.f_code.co_filename == _checkpoint.__file__:
        return True
    compiler = sys.modules.get("torch._dynamo")
    return bool(getattr(getattr(compiler, "__spec__", None), "_initializing", False))


def storage_key(tensor: torch.Tensor) -> int | None:
    """Return the identity of a tensor's storage while it lives; None for one without storage."""
    try:
        key: int = tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        # Sparse, opaque and functorch's tensors have no storage of their own.
        return None
    return key


def storage_keys_of(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """Return for each tensor what `storage_key` returns."""
    try:
        return [tensor.untyped_storage()._cdata for tensor in tensors]
    except (RuntimeError, NotImplementedError):
        return [storage_key(tensor) for tensor in tensors]


def key_of_storage(storage: torch.UntypedStorage) -> int:
    """Return the identity of a storage while it lives, as `storage_key` does for a tensor in it."""
    key: int = storage._cdata
    return key


@contextmanager
def outside_modes() -> Iterator[None]:
    """Run a block on plain tensors unseen by function modes and dispatch modes."""
    with without_functions(), _C._DisableTorchDispatch():
        yield


@contextmanager
def without_modes() -> Iterator[None]:
    """Run a block as if no mode were active, so that it may make fake tensors.

    It takes longer than `outside_modes`, in which torch makes none.
    """
    # Also as if no `vmap` or `grad` were around it, in which no tensor may ask for gradients.
    transforms = without_transforms if in_functorch() else nullcontext
    with without_functions(), _python_dispatch._disable_current_modes(), transforms():
        yield


def jagged_dummy() -> tuple[Any, str]:
    """Return the module and the name of the function that makes a tensor for the whole process.

    Each jagged view reads that tensor, which the first one makes.
    """
    return _jagged, "_nt_view_dummy"


without_transforms: Any = _pyfunctorch.temporarily_clear_interpreter_stack
"""Runs a block outside of every `vmap`, `grad` and `jvp`."""


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the counter by which autograd notices writes."""
    try:
        _version_setter((tensor,), (version,))
    except TypeError:  # torch 2.6 takes a tensor and a number.
        _version_setter(tensor, version)


def plain_size(size: object) -> int | None:
    """Return a size as a number; None for a ragged or a symbolic one."""
    if type(size) is int:
        return size
    node = getattr(size, "node", None)
    if node is None or node.is_nested_int():
        return None
    hint = getattr(node, "hint", None)
    return int(hint) if isinstance(hint, int) else None


def jagged_constructors() -> tuple[Any, dict[str, tuple[str, int]]]:
    """Return the module of torch's that makes jagged tensors, and its functions by name.

    Each with what users call it, and how many of tensor, offsets and lengths it returns.
    """
    called = {
        "jagged_from_list": ("nested_tensor", 2),
        "jagged_from_tensor_and_lengths": ("narrow", 3),
        "nested_view_from_values_offsets": ("nested_tensor_from_jagged", 1),
        "nested_view_from_values_offsets_lengths": ("nested_tensor_from_jagged", 1),
    }
    return _jagged, called


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
    names = _PARTS.get(tensor.layout)
    return flattened(tensor) if names is None else [getattr(tensor, name)() for name in names]


# What gives the parts of tensors of other layouts.
_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    **dict.fromkeys(
        (torch.sparse_csr, torch.sparse_bsr), ("crow_indices", "col_indices", "values")
    ),
    **dict.fromkeys(
        (torch.sparse_csc, torch.sparse_bsc), ("ccol_indices", "row_indices", "values")
    ),
}

function_modes: Callable[[], int] = _C._len_torch_function_stack
"""Returns how many function modes are active in this thread."""


def are_innermost(function_mode: Any, dispatch_mode: Any) -> bool:
    """Whether these are the innermost modes of this thread."""
    innermost: Any = torch.overrides._get_current_function_mode
    kernels = dispatch_modes()
    return innermost() is function_mode and (not kernels or kernels[-1] is dispatch_mode)


def fake_mode() -> Any:
    """Return a mode in which tensors have shapes and no content."""
    # Not every process needs it, and to import it takes its time.
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(kind: type) -> bool:
    """Tell whether a class is that of the tensors of `fake_mode`, with a shape and no content."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    return fakes is not None and issubclass(kind, fakes.FakeTensor)


@contextmanager
def quiet(logger_name: str) -> Iterator[None]:
    """Have a logger say nothing during a block."""
    logger = logging.getLogger(logger_name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


quiet_fake_mode = partial(quiet, "torch._subclasses.fake_tensor")
"""Has fake tensors not log what they raise, during a block; nobody else's logs change."""


def functorch_inner(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor inside of a wrapper of `vmap`, `grad` or `jvp`; None for any other."""
    if not _functorch.is_functorch_wrapped_tensor(tensor):
        return None
    inner: torch.Tensor = _functorch.get_unwrapped(tensor)
    return inner


def batch_dimension(tensor: torch.Tensor) -> int | None:
    """Return the dimension that `vmap` hides in one of its wrappers; None for any other tensor."""
    if not _functorch.is_batchedtensor(tensor):
        return None
    dimension: int = _functorch.maybe_get_bdim(tensor)
    return dimension


innermost_transform: Callable[[], Any] = _functorch.peek_interpreter_stack
"""Returns what stands for the innermost `vmap`, `grad`, `jvp` or the like; None outside of all."""


def in_functorch() -> bool:
    """Tell whether code runs inside of `vmap`, `grad`, `jvp` or the like."""
    return innermost_transform() is not None


def in_forward_mode() -> bool:
    """Tell whether tangents are computed, unseen by modes, beside values (`forward_ad`, `jvp`)."""
    return forward_ad._current_level >= 0


def is_higher_order(function: Any) -> bool:
    """Tell whether a function is an operator that takes functions (`cond`, `scan`)."""
    return isinstance(function, torch._ops.HigherOrderOperator)


def is_composite(kernel: Any) -> bool:
    """Tell whether an operator is made of others (`linear`)."""
    return bool(_has_kernel(kernel.name(), "CompositeImplicitAutograd"))


def is_only_composite(kernel: Any) -> bool:
    """Tell whether no device runs an operator but by others (`silu_backward`: the CPU does)."""
    if not is_dispatched(kernel) or not is_composite(kernel):
        return False
    return not any(_has_kernel(kernel.name(), key) for key in ("CPU", "CUDA", "MPS", "XPU"))


_has_kernel: Any = _C._dispatch_has_kernel_for_dispatch_key


def run_composite(kernel: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator by the others of which it is made."""
    # Not `decompose`: it has ways of its own, which draw other random numbers.
    return kernel._op_dk(_C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def is_dispatched(kernel: Any) -> bool:
    """Tell whether torch runs an operator outside of TorchScript, too."""
    return bool(_C._dispatch_has_kernel(kernel.name()))


def is_operator(function: Any) -> bool:
    """Tell whether a function is an operator with a schema (`torch.ops.aten.relu.default`)."""
    return isinstance(function, torch._ops.OpOverload)


def is_of_tensors(function: Any) -> bool:
    """Tell whether a function is one of torch's that work on tensors, or make them (`zeros`).

    Others set what torch goes by (`_enter_autocast`, `manual_seed`).
    """
    return getattr(_C._VariableFunctions, getattr(function, "__name__", ""), None) is function


def is_being_traced() -> bool:
    """Tell whether code runs on stand-ins for tensors, to make a graph of it (`make_fx`)."""
    return _C._get_dispatch_mode(_C._TorchDispatchModeKey.PROXY) is not None


GRADIENT_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""The attributes of a tensor with the tables of functions that run on its gradient, or None."""


def class_in_torch(thing: Any) -> str | None:
    """Return the name of the C++ class of an object (packed weights), or None for any other."""
    if not isinstance(thing, torch.ScriptObject):
        return None
    kind: Any = thing._type()
    return str(kind.name())


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


map_leaves: Callable[[Callable[[Any], Any], Any], Any] = _pytree.tree_map
"""Returns a nest with something else for each entry of its plain containers."""

map_tensors: Callable[[Callable[[torch.Tensor], Any], Any], Any] = partial(
    _pytree.tree_map_only, torch.Tensor
)
"""Returns a nest with something else for each tensor in its plain containers."""

flat: Callable[[Any], list[Any]] = _pytree.tree_leaves
"""Returns the leaves of a nest, as `filled` takes them."""


def filled(plan: Any, leaves: Sequence[Any]) -> Any:
    """Return the nest of a plan (a TreeSpec), filled with leaves."""
    return _pytree.tree_unflatten(leaves, plan)


def is_registered(cls: type) -> bool:
    """Whether torch's pytree flattens the instances of a class."""
    return cls in _pytree.SUPPORTED_NODES


def plan_of(module: torch.fx.GraphModule) -> tuple[Any, Any, list[str] | None]:
    """Return how the inputs and outputs of a graph module are nested, and the names of inputs.

    None for each that it does not tell: its nodes are then given what it is given.
    """
    info = getattr(getattr(module.graph, "_codegen", None), "pytree_info", None)
    if info is None:
        return None, None, None
    names = [name for name in getattr(info, "orig_args", ()) if name != "self"]
    return getattr(info, "in_spec", None), getattr(info, "out_spec", None), names


def is_guard(module: torch.nn.Module) -> bool:
    """Tell whether a module is one by which an exported program checks its inputs."""
    return type(module).__name__ == "GuardsFn" and type(module).__module__.startswith("torch.")
