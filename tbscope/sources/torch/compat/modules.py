"""Private parts of torch about modules, TorchScript modules and torch's global settings.

torch may change them in any release; each part that a supported version lacks has a fallback here.
Private parts about tensors are in `compat/tensors.py`.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, NamedTuple
from weakref import ref

import torch
from torch import _tensor_str
from torch.nn import parameter as _parameter
from torch.nn.modules import module as _module
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

_C: Any = torch._C

UNINITIALIZED: type = vars(_parameter)["UninitializedTensorMixin"]
"""The class of uninitialized parameters and buffers of lazy modules."""


# torch.jit is deprecated since torch 2.11, so a later version may lack it.
_jit: object = getattr(torch, "jit", None)

ScriptModule: type | tuple[()] = getattr(_jit, "ScriptModule", ())
"""The class of modules that torch.jit has scripted, traced or loaded; empty without torch.jit."""

_FUNCTION: type | tuple[()] = getattr(_jit, "ScriptFunction", ())

CALL_CODE: object = torch.nn.Module._call_impl.__code__
"""The code object of the method that calls hooks and `forward` of a module."""


def call_method_name() -> str:
    """Return the name of the method of `torch.nn.Module` through which every module call goes.

    `_call_impl` is private but cheap to replace; the public `__call__` is a slot, so replacing it
    makes Python update every subclass. With the compiler loaded, a module may have a copy of
    `_call_impl` of its own, so only `__call__` sees every call.
    """
    return "__call__" if "torch._dynamo" in sys.modules else "_call_impl"


def has_torchscript() -> bool:
    """Whether this torch has TorchScript."""
    return hasattr(_jit, "ScriptModule") and hasattr(_jit, "load")


def is_script_function(obj: object) -> bool:
    """Whether an object is a function that torch.jit traced or scripted."""
    return isinstance(obj, _FUNCTION)


def is_script(obj: object) -> bool:
    """Whether an object is a module or a function that torch.jit traced or scripted."""
    return isinstance(obj, ScriptModule) or is_script_function(obj)


is_tracing: Callable[[], bool] = getattr(_jit, "is_tracing", lambda: False)
"""Whether torch.jit.trace is tracing the code that runs now."""


def functional_calls() -> tuple[object, str]:
    """Return the Python module and the name of the function behind all forms of `functional_call`.

    That function replaces tensors of a module by its arguments, calls the module, and restores
    the module's own tensors.
    """
    return torch.nn.utils.stateless, "_functional_call"


def prepares_lazily(hook: object) -> bool:
    """Whether a hook is the one in which a lazy module initializes its parameters."""
    return getattr(hook, "__func__", None) is LazyModuleMixin._infer_parameters


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside a wrapper of `torch.compile`; any other module is returned as is."""
    while is_compile_wrapper(type(module)):
        children: dict[str, Any] = module._modules
        module = children["_orig_mod"]
    return module


def is_compile_wrapper(cls: type) -> bool:
    """Whether a class is that of the wrappers of `torch.compile`."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    wrapper: type | tuple[()] = getattr(eval_frame, "OptimizedModule", ())
    return issubclass(cls, wrapper)


def has_stale_call(wrapper: torch.nn.Module) -> bool:
    """Whether a wrapper of `torch.compile` calls its module by an outdated `__call__`.

    The wrapper of a user's module binds `__call__` when it is made, so a later replacement of
    `Module.__call__` does not see its calls. For torch's own modules, the method is looked up at
    each call.
    """
    inner = uncompiled(wrapper)
    original = getattr(wrapper.forward, "_torchdynamo_orig_callable", None)
    is_bound = getattr(original, "__self__", None) is inner
    return is_bound and getattr(original, "__func__", None) is not type(inner).__call__


# The attribute of a module through which torch calls it, if `module.compile()` has set it. torch
# leaves it out of copies.
_CALL = "_compiled_call_impl"


class ModuleCall(NamedTuple):
    """A call of a module that is about to be made.

    Attributes:
        module: The module.
        args: Its arguments.
        kwargs: Its keyword arguments.
        run: Makes the call.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    run: Callable[[], Any]


Around = Callable[[ModuleCall], Any]
"""A function that makes a call of a module, and returns its result."""


class _CallWrapper:
    """A callable in a module's `_compiled_call_impl`, which wraps each call of the module.

    It is pickled and copied as None.

    Args:
        module: The module; it is not kept alive.

    Attributes:
        compiled: The callable of `module.compile()`, which makes the calls; None for an
            uncompiled module.
        around: The functions around each call, the innermost first.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.compiled = module.__dict__.get(_CALL)
        self.around: list[Around] = []
        self._module = ref(module)

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        # The module of the calling `__call__`: replicas that torch makes for devices share this
        # object with the original.
        owner: Any = self._module()
        module = sys._getframe(1).f_locals.get("self", owner)
        run = partial(self.compiled or module._call_impl, *args, **kwargs)
        if module is owner and not torch.compiler.is_compiling():
            for wrap in self.around:
                run = partial(wrap, ModuleCall(module, args, kwargs, run))
        return run()

    def __reduce__(self) -> tuple[object, ...]:
        return type(None), ()


def is_compiled_in_place(module: torch.nn.Module) -> bool:
    """Whether `module.compile()` has compiled a module; its hooks then do not see its calls."""
    wrapper = module.__dict__.get(_CALL)
    return (wrapper.compiled if isinstance(wrapper, _CallWrapper) else wrapper) is not None


def compiled_call_of(function: Any, compiled: object) -> object:
    """Return the callable for a module that is compiled in place while `wrap_calls` is active.

    Args:
        function: The function that was compiled.
        compiled: The result of its compilation. It is returned unless the function is the
            `_call_impl` of such a module; then the wrapper takes it over and is returned.
    """
    module = getattr(function, "__self__", None)
    wrapper = vars(module).get(_CALL) if isinstance(module, torch.nn.Module) else None
    if not isinstance(wrapper, _CallWrapper) or function.__name__ != "_call_impl":
        return compiled
    wrapper.compiled = compiled
    return wrapper


@contextmanager
def wrap_calls(module: torch.nn.Module, around: Around) -> Iterator[None]:
    """Wrap each call of a module in a function, during a block.

    Unlike hooks, the function sees every way in which a call may end.

    Args:
        module: The module; the block does not keep it alive.
        around: The function.
    """
    existing = module.__dict__.get(_CALL)
    wrapper = existing if isinstance(existing, _CallWrapper) else _CallWrapper(module)
    module.__dict__[_CALL] = wrapper
    wrapper.around.append(around)
    # The suspended generator must not keep the module alive, nor what the function refers to.
    reference, number = ref(module), id(around)
    del module, existing, wrapper, around
    # torch.jit cannot read this annotation, and needs none of a module without the attribute.
    annotations = torch.nn.Module.__annotations__
    annotation = annotations.pop(_CALL, None)
    try:
        yield
    finally:
        if annotation is not None:
            annotations[_CALL] = annotation
        owner = reference()
        last = None if owner is None else owner.__dict__.get(_CALL)
        if owner is not None and isinstance(last, _CallWrapper):
            last.around = [each for each in last.around if id(each) != number]
            if not last.around and last.compiled is None:
                del owner.__dict__[_CALL]
            elif not last.around:
                owner.__dict__[_CALL] = last.compiled


def scripted_attributes(module: Any) -> dict[str, object]:
    """Return the current values of the attributes of a scripted module, by name.

    Tensors are the module's own; lists and mappings are copies. Empty for a module without
    recorded attributes.
    """
    concrete = module.__dict__.get("_concrete_type")
    names = concrete.get_attributes() if concrete is not None else ()
    return {name: module._c.getattr(name) for name in names}


def set_scripted_attribute(module: Any, name: str, value: Any) -> None:
    """Set an attribute of a scripted module; parameters and buffers are attributes, too."""
    module._c.setattr(name, value)


def script_handle(module: Any) -> object:
    """Return the handle of a scripted module: its C++ object, `torch._C.ScriptModule`."""
    return module._c


def script_class(handle: Any) -> str:
    """Return the class name of the handle of a scripted module (`__torch__.nets.Net`)."""
    return str(handle._type().annotation_str)


def script_children(handle: Any) -> list[tuple[str, object]]:
    """Return name and handle of each direct child of a scripted module, in order."""
    return [(name, handle.getattr(name)) for name, _ in _C.ModuleDict(handle).items()]


def script_tensors(handle: object) -> tuple[dict[str, object], dict[str, object]]:
    """Return the parameters and the buffers that a scripted module itself owns, by name."""
    return dict(_C.ParameterDict(handle).items()), dict(_C.BufferDict(handle).items())


def script_method(handle: Any, name: str) -> Any:
    """Return the method of a handle with a name, or None if it has no such method."""
    return handle._get_method(name) if handle._has_method(name) else None


def script_method_names(handle: Any) -> list[str]:
    """Return the names of the methods of a handle."""
    return list(handle._method_names())


def load_named_program(file: IO[bytes], name: str) -> object:
    """Load the exported program with a name from a file of torch.export with several programs."""
    from torch.export.pt2_archive._package import load_pt2

    return load_pt2(file).exported_programs[name]


def load_script_file(path: str) -> tuple[object, Callable[[str], object]]:
    """Load a file of torch.jit.save, onto the CPU.

    Returns:
        The handle of the module, and a function that returns the graph of a function in the file
        by its name, or None if the file has no such function.
    """
    unit = _C.CompilationUnit()
    module = _C.import_ir_module(unit, os.fspath(path), torch.device("cpu"), {}, False)

    def graph(name: str) -> object:
        function: Any = unit.find_function(name)
        return None if function is None else function.graph

    return module, graph


def script_call_graph(node: Any) -> object:
    """Return the graph of the function or method that a TorchScript node calls.

    Its inputs are those of the node, without the function itself. Calls inside it are inlined.
    """
    graph = _C.Graph()
    function, *arguments = (
        node.inputs() if node.kind() == "prim::CallFunction" else (None, *node.inputs())
    )
    entries: dict[str, object] = {}
    for value in arguments:
        entry = graph.addInput()
        entry.setType(value.type())
        entries.setdefault(value.debugName(), entry)
    if function is not None:
        copy = graph.createClone(function.node(), lambda value: value)
        entries[function.debugName()] = graph.insertNode(copy).output()
    call = graph.insertNode(graph.createClone(node, lambda value: entries[value.debugName()]))
    for value in call.outputs():
        graph.registerOutput(value)
    _C._jit_pass_inline(graph)
    return graph


def shared_tables() -> list[object]:
    """Return torch's process-wide tables that user code may change.

    These are the global module hooks, the print options, and the cache of
    `parametrize.cached()`.
    """
    hooks = [
        table
        for name, table in vars(_module).items()
        if name.startswith("_global_") and isinstance(table, dict)
    ]
    return [*hooks, vars(_tensor_str.PRINT_OPTS), parametrize._cache]


def mps_generator() -> torch.Generator | None:
    """Return torch's random generator on mps, or None if this torch has none."""
    generator: torch.Generator | None = getattr(
        torch.mps, "_get_default_mps_generator", lambda: None
    )()
    return generator


def default_device() -> torch.device | None:
    """Return the device set by `torch.set_default_device`, or None if none is set."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    device: torch.device | None = getattr(context, "device", None)
    return device


def set_default_device(device: torch.device | None) -> None:
    """Set the default device; None for none.

    `torch.get_default_device` of torch 2.6 to 2.8 fails after a device was set and removed, so
    the attribute is deleted, too.
    """
    torch.set_default_device(device)
    state: object = torch._GLOBAL_DEVICE_CONTEXT
    if device is None and hasattr(state, "device_context"):
        del state.device_context
