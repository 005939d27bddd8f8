"""Graphs of modules and functions that torch.jit traced or scripted, and of their files.

torch loads a file, and trusts it. The traced inputs in the archive are read here, by an unpickler
that calls nothing.
"""

import io
import os
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tbscope.errors import ArgumentError, InputError, TbscopeError
from tbscope.ir.graph import Graph
from tbscope.ir.pytree import map_tree
from tbscope.messages import error_text, shown
from tbscope.sources.files import DAMAGED, holds_script, local_file, open_archive, unreadable
from tbscope.sources.fx.aliasing import Content, Slot, slots_of, types_in, types_of_metadata
from tbscope.sources.fx.scopes import ProgramScopes, State, state_of
from tbscope.sources.fx.tensor_types import UNKNOWN, TensorType, Types
from tbscope.sources.pickles import PickledObject, PickledTensor, TensorUnpickler
from tbscope.sources.torch.calling.bind import DummyInputs, given_inputs, require_made
from tbscope.sources.torch.calling.pytree import result_leaves, tensor_leaves
from tbscope.sources.torch.calling.signatures import argument_names
from tbscope.sources.torch.compat.modules import (
    has_torchscript,
    is_script,
    is_script_function,
    load_script_file,
    script_children,
    script_class,
    script_handle,
    script_method,
    script_method_names,
    script_tensors,
)
from tbscope.sources.torchscript.control_flow import ScriptReader
from tbscope.sources.torchscript.values import (
    ScriptBlock,
    ScriptObject,
    ScriptValue,
    UnknownValue,
    class_name,
    gives_tensors,
    lowered,
    types_from_kind,
)
from tbscope.sources.torchscript.walk import ScriptFrame, ScriptWalk
from tbscope.utils.gc_pause import collecting_rarely
from tbscope.utils.validation import Dtypes, InputSize, check_truth


def from_torchscript(
    script_or_path: object,
    input_to_model: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_size: InputSize | None = None,
    dtypes: Dtypes | None = None,
    training: bool | None = None,
) -> Graph:
    """Return the graph of a traced or scripted module or function; its forward never runs.

    Each call of a module has a scope of its own; parameters, buffers and constants have their
    qualified names. A branch or loop that the code alone does not decide is drawn in scopes, each
    body once. Shapes are the traced shapes; for a script, and for inputs that differ from those of
    the trace, shapes follow from the inputs, by operations on meta or fake tensors.

    >>> import torch, tbscope
    >>> script = torch.jit.trace(torch.nn.Linear(3, 5), torch.rand(1, 3))
    >>> tbscope.from_torchscript(script)
    <Graph Linear: 4 nodes, 1 calls>

    Args:
        script_or_path: The result of `torch.jit.trace`, `torch.jit.script` or `torch.jit.freeze`,
            or the path of a file that `torch.jit.save` has written. torch loads the file, and
            runs code in it: the file is trusted as by `torch.jit.load`.
        input_to_model: The inputs, as for `trace`; so are `kwargs`, `input_size` and `dtypes`.
            Tensors on "meta" suffice. No inputs are needed if the graph has shapes, or if shapes
            may stay unknown.
        kwargs: Further keyword arguments.
        input_size: The sizes of generated inputs.
        dtypes: Their element types.
        training: Whether modules are read in training mode; None for the mode of each module.
            Traced code stays in the mode of its trace.
    Returns:
        The graph.
    Raises:
        ArgumentError: The argument is neither a script nor a path, torch cannot load the file, or
            this torch has no TorchScript.
        InputError: The inputs are too many or too few, or one is no tensor, but must be.
    """
    check_truth("training", training, none="the mode of each module")
    script = script_or_path
    if not has_torchscript():
        raise ArgumentError(
            "no graph can be read of TorchScript",
            why=f"torch {torch.__version__} has no torch.jit",
            fix="give the model itself: tbscope.trace(model, input)",
        )
    # The caller need not see torch's warnings that TorchScript is deprecated.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(script, str | os.PathLike):
            loaded = _load_script(script)
        elif is_script(script):
            loadable = script if is_script_function(script) else script_handle(script)
            loaded = _Loaded(loadable, lambda name: None, None)
        else:
            raise ArgumentError(
                f"from_torchscript was given {shown(script)}",
                why="it takes a result of torch.jit.trace or torch.jit.script, or the path of a "
                "file that torch.jit.save has written",
                fix="tbscope.from_torchscript(torch.jit.trace(model, x))",
            )
        try:
            with collecting_rarely():
                made = DummyInputs(input_size, dtypes, fake=True)
                return _graph_of(loaded, training, (input_to_model, kwargs, made))
        except TbscopeError:
            raise
        except RuntimeError as error:
            # torch reads a file's line tables on demand, so a damaged file may raise only here.
            deep = isinstance(error, RecursionError)
            raise ArgumentError(
                f"no graph can be read of {shown(script)}",
                why="its calls and blocks nest deeper than tbscope follows"
                if deep
                else f"torch raised {error_text(error)}",
                fix="draw a submodule: tbscope.from_torchscript(module.part)"
                if deep
                else "if it is a file, it is damaged: copy or write it again",
            ) from error


class _Loaded(NamedTuple):
    """A module or function of TorchScript, from memory or from a file.

    Attributes:
        module: The `ScriptFunction`, or the C++ object of the module (`script_handle`).
        functions: Returns the graph of a function of the file by its name, or None.
        traced_with: The inputs of the trace as types; None if they are unknown.
    """

    module: Any
    functions: Callable[[str], ScriptBlock]
    traced_with: list[Types] | None


def _graph_of(
    loaded: _Loaded,
    training: bool | None,
    given: tuple[Any, Mapping[str, Any] | None, DummyInputs],
) -> Graph:
    """Read a module or a function with its inputs; return its graph."""
    script = loaded.module
    root, modules = None, {}
    if is_script_function(script):
        method, label = script, script.name or "function"
    else:
        method = _method_of(script)
        modules = _modules_of(script)
        root = ScriptObject("", script_class(script), script)
        label = class_name(root.kind)
    places = ProgramScopes(
        label, lambda name: class_name(modules[name].kind if name in modules else "")
    )
    if root is not None:
        places.open_root(label)
    reader = ScriptReader(State(places, *state_of(modules)))
    graph = method.graph
    # The first input of a method is `self`.
    self_args = [] if root is None else [root]
    values = list(graph.inputs())[len(self_args) :]
    inputs, as_traced = _inputs_of(
        reader.graph.name, method, values, given_inputs(method, *given), loaded.traced_with
    )
    arguments = {name: lowered(content) for name, content in inputs.items()}
    reader.take(arguments.items(), arguments.items())
    walk = ScriptWalk(
        reader,
        functions=loaded.functions,
        training=training,
        trusts_types=as_traced,
    )
    frame = ScriptFrame(root, method.name, {}, lambda: None)
    results = walk.block(graph, [*self_args, *inputs.values()], frame)
    result = lowered(results[0] if len(results) == 1 else tuple(results))
    for call in reader.graph.calls:
        module = modules.get(call.qualified_name or "")
        if module is not None:
            call.training = module.training if training is None else training
    return reader.finish(result_leaves(result, Slot), result, modules)


def _method_of(handle: object) -> Any:
    """Return the method to draw: `forward`, or the only method of the module.

    A forward for several types of arguments (as in LSTM) is one method for each type, named
    `forward__0`, `forward__1`: the first is returned.

    Raises:
        ArgumentError: The module has no forward, and not exactly one other method.
    """
    names = script_method_names(handle)
    forwards = [name for name in names if name in ("forward", "forward__0")]
    if forwards or len(names) == 1:
        return script_method(handle, (forwards or names)[0])
    name = class_name(script_class(handle)).rpartition(".")[2]
    raise ArgumentError(
        f"no graph can be read of a scripted {name}",
        why=f"it has no forward, and {len(names)} other methods" if names else "it has no forward",
        fix="script a module whose forward is to be drawn",
    )


class _ScriptModule:
    """A module of TorchScript, with its own parameters and buffers.

    Args:
        handle: The C++ object of the module (`script_handle`).
    """

    __slots__ = ("_buffers", "_parameters", "handle")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._parameters, self._buffers = script_tensors(handle)

    @property
    def kind(self) -> str:
        """TorchScript's name of its class (`__torch__.nets.Net`)."""
        return script_class(self.handle)

    @property
    def training(self) -> bool:
        """Whether it is in training mode; a frozen module is not."""
        return bool(self.handle.hasattr("training") and self.handle.getattr("training"))


def _modules_of(handle: object) -> dict[str, _ScriptModule]:
    """Return a module (as "") and all its descendants by qualified name, in tree order."""
    modules: dict[str, _ScriptModule] = {}
    pending = [("", handle)]
    while pending:
        name, handle = pending.pop()
        modules[name] = _ScriptModule(handle)
        submodules = reversed(script_children(handle))
        pending += [
            (f"{name}.{attribute}" if name else attribute, child) for attribute, child in submodules
        ]
    return modules


# -- inputs -----------------------------------------------------------------------------------


def _inputs_of(
    name: str,
    method: Any,
    values: Sequence[ScriptValue],
    given: tuple[Sequence[object], Mapping[str, object]] | None,
    traced_with: Sequence[Types] | None,
) -> tuple[dict[str, Content], bool]:
    """Return the inputs of a method or a function, by name.

    Args:
        name: The name of the module or function, for errors.
        method: The method or function, with a schema.
        values: The inputs of its graph, without `self`.
        given: The positional and the keyword arguments; None if there are no inputs.
        traced_with: The inputs of the trace as types, used if there are no arguments; None if
            they are unknown.
    Returns:
        The inputs, and whether the types in the graph are valid for them.
    Raises:
        InputError: An argument in the place of a tensor is none.
    """
    # The schema of a method begins with `self`, which is not among the values.
    parameters = list(method.schema.arguments)[-len(values) :]
    bound: Mapping[str, object] = {}
    if given is not None:
        traced_with = None
        bound = dict(argument_names(method, *given))
    inputs: dict[str, Content] = {}
    as_traced = True
    traced_types = [*(traced_with or ()), *[None] * len(values)]
    for parameter, value, traced_type in zip(parameters, values, traced_types, strict=False):
        script_type = value.type()
        typed = traced_type or (
            types_from_kind(script_type)
            if gives_tensors(script_type)
            else UnknownValue(parameter.name)
        )
        if parameter.name in bound:
            arg = bound[parameter.name]
            if parameter.type.kind() == "TensorType" and not isinstance(arg, torch.Tensor):
                raise InputError(
                    f"{name}() takes no {shown(arg)} as {parameter.name!r}",
                    why=f"it takes {parameter.type.annotation_str}",
                    fix="pass an input of this type, or no inputs at all",
                )
            for path, tensor in tensor_leaves(arg, parameter.name, public=True):
                require_made(path, tensor)
            arg_type = types_of_metadata(arg)
            as_traced &= _is_alike(arg_type, typed)
            typed = arg_type
        elif parameter.has_default_value():
            typed = parameter.default_value
        inputs[parameter.name] = slots_of(typed)
    return inputs, as_traced


def _is_alike(own: object, graph: object) -> bool:
    """Whether the tensors of an input have the shapes and dtypes that the graph has for it."""
    arg_types, graph_types = (
        [(tensor.shape, tensor.dtype) for tensor in types_in(nest)] for nest in (own, graph)
    )
    return arg_types == graph_types


# -- files ------------------------------------------------------------------------------------


_DOING = "no TorchScript can be read"


def _load_script(path: object) -> _Loaded:
    """Load the module in a file: torch compiles its code, and runs parts of it.

    Args:
        path: The path of the file.
    Raises:
        ArgumentError: The path is no TorchScript file, the file is damaged, or torch cannot
            load it.
    """
    name = local_file(path, _DOING)
    try:
        with open_archive(name) as archive:
            traced_inputs = _noted(archive, path)
    except ArgumentError:
        raise
    except Exception as error:  # The reader of a damaged archive raises errors of many kinds.
        why = f"it is no whole zip file: {error_text(error)}"
        raise unreadable(path, _DOING, why, DAMAGED) from error
    try:
        return _Loaded(*load_script_file(name), traced_inputs)
    except Exception as error:
        raise unreadable(
            path,
            _DOING,
            f"torch.jit.load raised {error_text(error)}",
            "import what registers its operators first; else write it again with "
            "torch.jit.save(module, path), by this torch or an older one",
        ) from error


def _noted(archive: zipfile.ZipFile, path: object) -> list[Types] | None:
    """Return the inputs with which `forward` was traced, as types, or None if the file has none.

    Entries with code and pickles are read in full, so that zipfile compares their checksums:
    torch does not, and a damaged line table may end the process.
    """
    names = archive.namelist()
    if not holds_script(names):
        why = "it is a zip file, and contains no TorchScript"
        raise unreadable(path, _DOING, why, "torch.jit.save(module, path) writes one")
    traced_inputs: list[Types] | None = None
    for name in names:
        if not name.endswith((".py", "pkl")):
            continue
        content = archive.read(name)
        if name.endswith("/traced_inputs.pkl"):
            try:
                inputs = TensorUnpickler(io.BytesIO(content)).load().get("forward")
                traced_inputs = map_tree(inputs, _typed) if isinstance(inputs, list) else None
            except Exception as error:  # The reader of a damaged pickle may raise anything.
                why = f"its entry {shown(name)} cannot be read: {error_text(error)}"
                raise unreadable(path, _DOING, why, DAMAGED) from error
    return traced_inputs


def _typed(content: object) -> object:
    """Return the type of a tensor in a pickle, and None for an object of any class."""
    if isinstance(content, PickledTensor):
        # A type without strides is never run on meta tensors, which an unknown dtype cannot be.
        stride = content.stride if content.dtype != UNKNOWN.dtype else None
        return TensorType(content.shape, content.dtype, "cpu", stride=stride)
    return None if isinstance(content, PickledObject) else content
