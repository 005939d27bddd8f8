"""Private parts of torch about tensors, pytrees, operators, autograd and modes.

torch may change them in any release; each part that a supported version lacks has a fallback here.
Private parts about modules are in `compat/modules.py`, about the compiler in
`compat/compiler.py`, about distributed runs in `distributed.py`.
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

_C: Any = torch._C

# torch 2.6 to 2.8 need a rule for each pair of a higher-order operator and a class of modes.
_WANTS_RULES = not hasattr(TorchDispatchMode, "supports_higher_order_operators")


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that receives higher-order operators as they are.

    It differs from `TorchDispatchMode` in two ways. torch does not import all of `torch._dynamo`
    to wrap it (`_should_skip_dynamo`). And it leaves torch's process-wide flag for active modes
    alone: if modes of two threads ended in the order in which they began, torch would take one
    for active for ever, and compile nothing any more.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

        def ask(
            operator: object, mode: TorchDispatchMode, *args: object, **kwargs: object
        ) -> object:
            return mode.__torch_dispatch__(operator, (), args, kwargs)  # type: ignore[no-untyped-call]

        # Operators imported since the last mode was made have no rule yet.
        for operator in tuple(torch._ops._higher_order_ops.values()) if _WANTS_RULES else ():
            if type(self) not in operator.python_key_table:
                operator.py_impl(type(self))(partial(ask, operator))

    def __enter__(self) -> Self:
        _python_dispatch._push_mode(self)
        return self

    def __exit__(self, *raised: object) -> None:
        _python_dispatch._pop_mode()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


RUN_BACKWARD = "_engine_run_backward"
"""The function of `torch.autograd` that runs every backward pass.

Other code may have imported the public functions, so they are no place to intercept passes.
"""

cuda_in_use: Callable[[], bool] = torch.cuda.is_initialized
"""Whether this process uses CUDA; other queries of `torch.cuda` would begin its use."""

wait_on_cuda: Callable[[int], object] = getattr(torch.cuda, "_sleep", lambda cycles: None)
"""Has the current CUDA device wait for a number of its cycles."""

running_node: Callable[[], object] = _C._current_autograd_node
"""Returns the autograd node that runs in this thread, or None."""

STOP_RECOMPUTATION: type[BaseException] = _checkpoint._StopRecomputationError
"""The exception with which a checkpoint ends a recomputation, once it has all saved tensors."""


dispatch_modes: Callable[[], list[Any]] = _python_dispatch._get_current_dispatch_mode_stack
"""Returns the active dispatch modes of this thread, the innermost last."""

dispatch_depth: Callable[[], int] = _C._len_torch_dispatch_stack
"""Returns the number of these modes, at a quarter of the time."""


def gradient_types(node: Any) -> list[tuple[Any, torch.dtype, torch.device]]:
    """Return shape, dtype and device of each gradient that an autograd node receives.

    These are the types of the outputs of its forward operation. A single float32 scalar on the
    CPU if torch reports none.
    """
    metadata = node._input_metadata
    if not metadata:
        return [((), torch.float32, torch.device("cpu"))]
    return [(entry.shape, entry.dtype, entry.device) for entry in metadata]


sequence_number: Callable[[], int] = _C._autograd._get_sequence_nr
"""Returns the sequence number of the next autograd node in this thread."""

MOVES: object = getattr(torch, "_cudnn_rnn_flatten_weight")  # noqa: B009 (no stub has it)
"""A function that moves the tensors of its first argument to other memory, undeclared."""

without_functions: Any = _C.DisableTorchFunction
"""Disables function modes and `__torch_function__` for a block."""

_functorch: Any = _C._functorch
_pyfunctorch: Any = sys.modules["torch._functorch.pyfunctorch"]
_jagged: object = sys.modules["torch.nested._internal.nested_tensor"]
_version_setter: Any = _C._autograd._unsafe_set_version_counter


# Up to 2.10, torch saves the inputs of a checkpointed function by an operation without a result.
# Up to 2.8, its compiler runs all operators while it is imported, at its first use.
RUNS_FOR_ITSELF: bool = hasattr(_checkpoint, "_NoopSaveInputs")
"""Whether this torch runs internal operations between the operations of a model."""


def is_of_its_own(frame: FrameType) -> bool:
    """Whether an operation called by a Python frame is internal to torch.

    Such operations are called in torch's checkpoint file, or while the compiler is imported.
    """
    if frame.f_code.co_filename == _checkpoint.__file__:
        return True
    compiler = sys.modules.get("torch._dynamo")
    return bool(getattr(getattr(compiler, "__spec__", None), "_initializing", False))


def storage_key(tensor: torch.Tensor) -> int | None:
    """Return a key of a tensor's storage, unique while it lives, or None without a storage."""
    try:
        key: int = tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        # Sparse, opaque and functorch tensors have no storage of their own.
        return None
    return key


def keys_of_storages(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """Return the `storage_key` of each tensor."""
    try:
        return [tensor.untyped_storage()._cdata for tensor in tensors]
    except (RuntimeError, NotImplementedError):
        return [storage_key(tensor) for tensor in tensors]


def key_of_storage(storage: torch.UntypedStorage) -> int:
    """Return the key of a storage, equal to the `storage_key` of the tensors in it."""
    key: int = storage._cdata
    return key


@contextmanager
def outside_modes() -> Iterator[None]:
    """Run a block on plain tensors without function modes and dispatch modes.

    The block cannot make fake tensors; see `without_modes`.
    """
    with without_functions(), _C._DisableTorchDispatch():
        yield


@contextmanager
def without_modes() -> Iterator[None]:
    """Run a block as if no mode were active, so that it can make fake tensors.

    It takes longer than `outside_modes`, in which torch cannot make any.
    """
    # `vmap` and `grad` are suspended, too: inside them, no tensor may require gradients.
    transforms = without_transforms if in_functorch() else nullcontext
    with without_functions(), _python_dispatch._disable_current_modes(), transforms():
        yield


def jagged_dummy() -> tuple[object, str]:
    """Return the Python module and the name of the function that makes the jagged dummy tensor.

    The first jagged view of a process makes it, and every jagged view reads it.
    """
    return _jagged, "_nt_view_dummy"


without_transforms: Any = _pyfunctorch.temporarily_clear_interpreter_stack
"""Runs a block outside of every `vmap`, `grad` and `jvp`."""


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of a tensor, by which autograd detects in-place writes."""
    try:
        _version_setter((tensor,), (version,))
    except TypeError:  # torch 2.6 takes one tensor and one number.
        _version_setter(tensor, version)


def plain_size(size: object) -> int | None:
    """Return a size as an int; a symbolic size by its hint. None if ragged or without a hint."""
    if type(size) is int:
        return size
    node = getattr(size, "node", None)
    if node is None or node.is_nested_int():
        return None
    hint = getattr(node, "hint", None)
    return int(hint) if isinstance(hint, int) else None


def jagged_constructors() -> tuple[object, dict[str, tuple[str, int]]]:
    """Return the Python module that makes jagged tensors, and its functions by name.

    Each function comes with its public name, and with the number of results that it returns of
    tensor, offsets and lengths.
    """
    functions = {
        "jagged_from_list": ("nested_tensor", 2),
        "jagged_from_tensor_and_lengths": ("narrow", 3),
        "nested_view_from_values_offsets": ("nested_tensor_from_jagged", 1),
        "nested_view_from_values_offsets_lengths": ("nested_tensor_from_jagged", 1),
    }
    return _jagged, functions


def nested_lengths(tensor: torch.Tensor) -> list[int] | None:
    """Return the length of each sequence in a nested tensor, or None for any other tensor."""
    if not tensor.is_nested:
        return None
    if tensor.layout is torch.jagged:
        offsets: torch.Tensor = getattr(tensor, "offsets")()  # noqa: B009 (a subclass has it)
        return [int(length) for length in offsets.diff().tolist()]
    return [int(sizes[0]) for sizes in tensor._nested_tensor_size().tolist()]


def flattened(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the inner tensors of a subclass, by `__tensor_flatten__`; empty for other tensors."""
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is None:
        return []
    attributes = [getattr(tensor, name, None) for name in flatten(tensor)[0]]
    return [inner for inner in attributes if isinstance(inner, torch.Tensor)]


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the inner tensors that contain the content of a tensor.

    Tensors of functorch, of sparse layouts and of wrapper subclasses have some. Empty for a plain
    tensor, whose content is in its own storage.
    """
    wrapped = functorch_inner(tensor)
    if wrapped is not None:
        return [wrapped]
    names = _PARTS.get(tensor.layout)
    return flattened(tensor) if names is None else [getattr(tensor, name)() for name in names]


# The methods that return the inner tensors, by layout.
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
"""Returns the number of active function modes in this thread."""


def are_innermost(function_mode: object, dispatch_mode: object) -> bool:
    """Whether a function mode and a dispatch mode are the innermost of this thread.

    The dispatch mode counts as innermost if none is active at all.
    """
    current_function_mode: Any = torch.overrides._get_current_function_mode
    modes = dispatch_modes()
    return current_function_mode() is function_mode and (not modes or modes[-1] is dispatch_mode)


def fake_mode() -> Any:
    """Return a new FakeTensorMode, which also accepts real tensors."""
    # The import takes time, and not every process needs it.
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(kind: type) -> bool:
    """Whether a class is FakeTensor, whose tensors have a shape and no content."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    return fakes is not None and issubclass(kind, fakes.FakeTensor)


@contextmanager
def quiet(logger_name: str) -> Iterator[None]:
    """Disable a logger during a block."""
    logger = logging.getLogger(logger_name)
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


quiet_fake_mode = partial(quiet, "torch._subclasses.fake_tensor")
"""Keeps fake tensors from logging the errors that they raise, during a block.

No other logger changes.
"""


def functorch_inner(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor inside a wrapper of `vmap`, `grad` or `jvp`, or None for other tensors."""
    if not _functorch.is_functorch_wrapped_tensor(tensor):
        return None
    inner: torch.Tensor = _functorch.get_unwrapped(tensor)
    return inner


def batch_dimension(tensor: torch.Tensor) -> int | None:
    """Return the hidden dimension of a wrapper of `vmap`, or None for any other tensor."""
    if not _functorch.is_batchedtensor(tensor):
        return None
    dimension: int = _functorch.maybe_get_bdim(tensor)
    return dimension


innermost_transform: Callable[[], object] = _functorch.peek_interpreter_stack
"""Returns the interpreter of the innermost `vmap`, `grad` or `jvp`, or None outside of all."""


def in_functorch() -> bool:
    """Whether the code that runs is inside `vmap`, `grad`, `jvp` or another transform."""
    return innermost_transform() is not None


def in_forward_mode() -> bool:
    """Whether forward-mode autograd is active (`forward_ad`, `jvp`): modes do not see tangents."""
    return forward_ad._current_level >= 0


def is_higher_order(function: object) -> bool:
    """Whether a function is a higher-order operator, which takes functions (`cond`, `scan`)."""
    return isinstance(function, torch._ops.HigherOrderOperator)


def is_composite(kernel: Any) -> bool:
    """Whether an operator can be decomposed into others (`linear`)."""
    return bool(_has_kernel(kernel.name(), "CompositeImplicitAutograd"))


def is_only_composite(kernel: Any) -> bool:
    """Whether an operator runs only by its decomposition, with no kernel of a device of its own.

    `silu_backward` has a decomposition and a CPU kernel, so it is not one of these.
    """
    if not is_dispatched(kernel) or not is_composite(kernel):
        return False
    return not any(_has_kernel(kernel.name(), key) for key in ("CPU", "CUDA", "MPS", "XPU"))


_has_kernel: Any = _C._dispatch_has_kernel_for_dispatch_key


def run_composite(kernel: Any, args: Any, kwargs: Any) -> object:
    """Run an operator by its decomposition."""
    # `decompose` prefers decompositions in Python, which draw other random numbers.
    return kernel._op_dk(_C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def is_dispatched(kernel: Any) -> bool:
    """Whether an operator has a kernel in torch's dispatcher, and not in TorchScript only."""
    return bool(_C._dispatch_has_kernel(kernel.name()))


def is_operator(function: object) -> bool:
    """Whether a function is an overload of an operator (`torch.ops.aten.relu.default`)."""
    return isinstance(function, torch._ops.OpOverload)


def is_of_tensors(function: object) -> bool:
    """Whether a function of torch works on tensors, or makes them (`zeros`).

    Other functions of torch change its settings (`_enter_autocast`, `manual_seed`).
    """
    return getattr(_C._VariableFunctions, getattr(function, "__name__", ""), None) is function


def is_being_traced() -> bool:
    """Whether the code that runs is traced with proxies for tensors (`make_fx`)."""
    return _C._get_dispatch_mode(_C._TorchDispatchModeKey.PROXY) is not None


GRADIENT_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""The attributes of a tensor with its tables of gradient hooks; their value may be None."""


def class_in_torch(obj: object) -> str | None:
    """Return the C++ class name of a script object (packed weights), or None for other objects."""
    if not isinstance(obj, torch.ScriptObject):
        return None
    kind: Any = obj._type()
    return str(kind.name())


def schema_of(function: object) -> Any:
    """Return the schema of an operator's overload, or None for any other function."""
    return getattr(function, "_schema", None)


def operator_name(function: object) -> str | None:
    """Return the name of an operator without a schema, with namespace and overload, or None."""
    name = getattr(function, "_qualified_op_name", None) or getattr(function, "_name", None)
    return name if isinstance(name, str) else None


def version_of(tensor: torch.Tensor) -> int:
    """Return the version counter of a tensor, by which autograd detects in-place writes."""
    return tensor._version


map_leaves: Callable[[Callable[[object], object], object], object] = _pytree.tree_map
"""Returns a pytree with each leaf replaced by the result of a function."""

map_tensors: Callable[[Callable[[torch.Tensor], object], object], object] = partial(
    _pytree.tree_map_only, torch.Tensor
)
"""Returns a pytree with each tensor among its leaves replaced by the result of a function."""

TreeSpec = _pytree.TreeSpec
flat: Callable[[object], list[object]] = _pytree.tree_leaves
"""Returns the leaves of a pytree, in the order in which `filled` takes them."""


def filled(plan: Any, leaves: Sequence[object]) -> object:
    """Return the pytree of a TreeSpec (`plan`) with some leaves."""
    return _pytree.tree_unflatten(leaves, plan)


TREE_FUNCTIONS = (_pytree.tree_unflatten, torch.fx._pytree.tree_flatten_spec)
"""Functions between containers and their leaves that an unflattened program calls."""


def is_registered(cls: type) -> bool:
    """Whether a class is registered as a container of torch's pytree."""
    return cls in _pytree.SUPPORTED_NODES


def tree_specs_of(module: torch.fx.GraphModule) -> tuple[object, object, list[str] | None]:
    """Return the TreeSpecs of a graph module's inputs and outputs, and the names of its inputs.

    None for each that it does not record: then its placeholders take the arguments as they are.
    """
    info = getattr(getattr(module.graph, "_codegen", None), "pytree_info", None)
    if info is None:
        # The module of an unflattened program has the record of each call, its own first.
        for call in getattr(module, "module_call_graph", ())[:1]:
            signature = call.signature
            return signature.in_spec, signature.out_spec, signature.forward_arg_names
        return None, None, None
    names = [name for name in getattr(info, "orig_args", ()) if name != "self"]
    return getattr(info, "in_spec", None), getattr(info, "out_spec", None), names


def is_guard(module: torch.nn.Module) -> bool:
    """Whether a module contains the input guards of an exported program (`GuardsFn`)."""
    return type(module).__name__ == "GuardsFn" and type(module).__module__.startswith("torch.")
