"""The private parts of torch that tell of modules, of scripted ones, and of its settings.

All others are named in internals.py. torch promises nothing about them. What a version that is
supported lacks has a fallback here.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any
from weakref import ref

import torch
from torch import _tensor_str
from torch.nn import parameter as _parameter
from torch.nn.modules import module as _module
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

__all__ = [
    "CALL_CODE",
    "UNINITIALIZED",
    "ScriptModule",
    "around_calls",
    "call_method_name",
    "default_device",
    "functional_calls",
    "is_compiled_in_place",
    "is_tracing",
    "mps_generator",
    "load_named_program",
    "load_script_file",
    "made_by",
    "prepares_lazily",
    "script_call_graph",
    "script_children",
    "script_class",
    "script_handle",
    "script_method",
    "script_tensors",
    "scripted_attributes",
    "set_default_device",
    "set_scripted_attribute",
    "shared_tables",
    "calls_unseen",
    "uncompiled",
]


_C: Any = torch._C

UNINITIALIZED: type = vars(_parameter)["UninitializedTensorMixin"]
"""The class of parameters and buffers that a lazy module has not made yet."""


class _NoScriptModule:
    """The class of no module: that of scripted ones where torch has none any more."""


# Deprecated since torch 2.11, so that a later one may lack it.
_jit: Any = getattr(torch, "jit", None)

ScriptModule: type = getattr(_jit, "ScriptModule", _NoScriptModule)
"""The class of what torch.jit made of modules."""

CALL_CODE: Any = torch.nn.Module._call_impl.__code__
"""The code that calls the forward of a module."""


def call_method_name() -> str:
    """Return the method of `torch.nn.Module` through which every call of a module goes.

    `_call_impl` is private but cheap to replace; the public `__call__` is a slot, so
    replacing it makes Python update every subclass. Where the compiler is loaded, a
    module may hold its own copy of the private one, so the public one it is.
    """
    return "__call__" if "torch._dynamo" in sys.modules else "_call_impl"


is_tracing: Callable[[], bool] = getattr(_jit, "is_tracing", lambda: False)
"""Tells whether torch.jit.trace makes a graph of what runs now."""


def functional_calls() -> tuple[Any, str]:
    """Return the module and the name of the function behind each form of `functional_call`.

    It puts the tensors that it was given in the place of a module's own, calls the module,
    and puts its own back.
    """
    return torch.nn.utils.stateless, "_functional_call"


def prepares_lazily(hook: Any) -> bool:
    """Tell whether a hook is the one by which a lazy module makes its parameters."""
    return getattr(hook, "__func__", None) is LazyModuleMixin._infer_parameters


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that `torch.compile` wrapped; any other module is returned as it is."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    wrapper = getattr(eval_frame, "OptimizedModule", None)
    while wrapper is not None and isinstance(module, wrapper):
        module = module._modules["_orig_mod"]
    return module


def calls_unseen(wrapper: torch.nn.Module) -> bool:
    """Tell whether what `torch.compile` made of a module calls it as it was called then.

    Who replaces `Module.__call__` later sees no call of that module. torch does so with modules
    of the user's, and looks the method up anew for its own.
    """
    inner = uncompiled(wrapper)
    called = getattr(wrapper.forward, "_torchdynamo_orig_callable", None)
    bound = getattr(called, "__self__", None) is inner
    return bound and getattr(called, "__func__", None) is not type(inner).__call__


# What makes the calls of a module that `module.compile()` has compiled stands in it by this name;
# torch leaves it out of copies.
_CALL = "_compiled_call_impl"

Around = Callable[[Callable[[], Any]], Any]
"""Makes the call that it is given, and returns its result."""


class _AroundCalls:
    """Makes the calls of a module; copies of it, in memory and in files, have nothing such.

    Args:
        module: The module; it is not kept alive.

    Attributes:
        compiled: What made them before; None for a method of the module's own.
        around: What is done around each call, the innermost first.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.compiled = module.__dict__.get(_CALL)
        self.around: list[Around] = []
        self._module = ref(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The one that is called: copies that torch makes for devices hold the same as it.
        called: Any = sys._getframe(1).f_locals.get("self", self._module())
        call = partial(self.compiled or called._call_impl, *args, **kwargs)
        if not torch.compiler.is_compiling():
            for around in self.around:
                call = partial(around, call)
        return call()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def is_compiled_in_place(module: torch.nn.Module) -> bool:
    """Tell whether `module.compile()` has compiled a module, whose hooks are told of nothing."""
    made = module.__dict__.get(_CALL)
    return (made.compiled if isinstance(made, _AroundCalls) else made) is not None


def made_by(function: Any, compiled: Any) -> Any:
    """Return what makes the calls of a module that is compiled while something is done around them.

    Args:
        function: What was compiled; anything but the method that calls such a module is none.
        compiled: What became of it, which is returned where it is none.
    """
    module = getattr(function, "__self__", None)
    made = vars(module).get(_CALL) if isinstance(module, torch.nn.Module) else None
    if not isinstance(made, _AroundCalls) or function.__name__ != "_call_impl":
        return compiled
    made.compiled = compiled
    return made


@contextmanager
def around_calls(module: torch.nn.Module, around: Around) -> Iterator[None]:
    """Have something done around each call of a module, during a block.

    Unlike hooks, that is told of every end that a call may come to.

    Args:
        module: The module.
        around: What is done.
    """
    known = module.__dict__.get(_CALL)
    made = known if isinstance(known, _AroundCalls) else _AroundCalls(module)
    module.__dict__[_CALL] = made
    made.around.append(around)
    # While it is waited for, nobody keeps it alive.
    held = ref(module)
    del module
    try:
        yield
    finally:
        made.around.remove(around)
        whole = held()
        if whole is not None and not made.around and whole.__dict__.get(_CALL) is made:
            if made.compiled is None:
                del whole.__dict__[_CALL]
            else:
                whole.__dict__[_CALL] = made.compiled


def scripted_attributes(module: Any) -> dict[str, Any]:
    """Return what the attributes of a scripted module hold now, by name.

    Tensors are the module's own, lists and mappings copies of its own. Nothing for a module
    that tells none.
    """
    concrete = module.__dict__.get("_concrete_type")
    names = concrete.get_attributes() if concrete is not None else ()
    return {name: module._c.getattr(name) for name in names}


def set_scripted_attribute(module: Any, name: str, value: Any) -> None:
    """Set an attribute of a scripted module, parameters and buffers too."""
    module._c.setattr(name, value)


def script_handle(module: Any) -> Any:
    """Return what TorchScript itself holds of a scripted module."""
    return module._c


def script_class(handle: Any) -> str:
    """Return the name of the class of what TorchScript holds (`__torch__.nets.Net`)."""
    return str(handle._type().annotation_str)


def script_children(handle: Any) -> list[tuple[str, Any]]:
    """Return name and handle of each module right in a scripted one, in order."""
    return [(name, handle.getattr(name)) for name, _ in _C.ModuleDict(handle).items()]


def script_tensors(handle: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters and the buffers right in a scripted module, by name."""
    return dict(_C.ParameterDict(handle).items()), dict(_C.BufferDict(handle).items())


def script_method(handle: Any, name: str) -> Any:
    """Return a method of what TorchScript holds; None where it has none of this name."""
    return handle._get_method(name) if handle._has_method(name) else None


def script_method_names(handle: Any) -> list[str]:
    """Return the names of the methods of what TorchScript holds."""
    return list(handle._method_names())


def load_named_program(file: IO[bytes], name: str) -> Any:
    """Load a program of a name of its own from a file in which torch.export packs several."""
    from torch.export.pt2_archive._package import load_pt2

    return load_pt2(file).exported_programs[name]


def load_script_file(path: str) -> tuple[Any, Callable[[str], Any]]:
    """Load a file of torch.jit.save, onto the CPU.

    Returns:
        What TorchScript holds of the module, and what gives the graph of a function of the file by
        its name; None where there is none.
    """
    unit = _C.CompilationUnit()
    module = _C.import_ir_module(unit, os.fspath(path), torch.device("cpu"), {}, False)

    def graph(name: str) -> Any:
        function: Any = unit.find_function(name)
        return None if function is None else function.graph

    return module, graph


def script_call_graph(node: Any) -> Any:
    """Return the graph of what a node of TorchScript calls, a function or a method of an object.

    Its inputs are those of the node, but for the function itself. What is called in it stands in
    it, too.
    """
    graph = _C.Graph()
    function, *given = (
        node.inputs() if node.kind() == "prim::CallFunction" else (None, *node.inputs())
    )
    held: dict[str, Any] = {}
    for value in given:
        entry = graph.addInput()
        entry.setType(value.type())
        held.setdefault(value.debugName(), entry)
    if function is not None:
        copy = graph.createClone(function.node(), lambda value: value)
        held[function.debugName()] = graph.insertNode(copy).output()
    call = graph.insertNode(graph.createClone(node, lambda value: held[value.debugName()]))
    for value in call.outputs():
        graph.registerOutput(value)
    _C._jit_pass_inline(graph)
    return graph


def shared_tables() -> list[Any]:
    """Return the tables of torch that code of users fills for the whole process.

    Hooks of all modules, print options, and what `parametrize.cached()` remembers.
    """
    hooks = [
        table
        for name, table in vars(_module).items()
        if name.startswith("_global_") and isinstance(table, dict)
    ]
    return [*hooks, vars(_tensor_str.PRINT_OPTS), parametrize._cache]


def mps_generator() -> torch.Generator | None:
    """Return the random generator of torch on mps; None where this torch has none."""
    found: torch.Generator | None = getattr(torch.mps, "_get_default_mps_generator", lambda: None)()
    return found


def default_device() -> torch.device | None:
    """Return the device set by `torch.set_default_device`; None where none was set."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    device: torch.device | None = getattr(context, "device", None)
    return device


def set_default_device(device: torch.device | None) -> None:
    """Set the device that `default_device` tells; None for none.

    `torch.get_default_device` of torch 2.6 to 2.8 fails where one was set and taken back.
    """
    torch.set_default_device(device)
    held: Any = torch._GLOBAL_DEVICE_CONTEXT
    if device is None and hasattr(held, "device_context"):
        del held.device_context
