"""Graphs of modules and functions that torch.jit traced or scripted, and of their files."""

import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from tbscope.errors import ArgumentError, TbscopeError
from tbscope.ir.graph import Graph
from tbscope.messages import error_text, shown
from tbscope.sources.fx.io_names import result_paths
from tbscope.sources.fx.scopes import ProgramScopes
from tbscope.sources.fx.state import State, state_of
from tbscope.sources.torch.calling.bind import DummyInputs, given_inputs
from tbscope.sources.torch.calling.signatures import describe_type
from tbscope.sources.torch.compat.modules import (
    script_children,
    script_class,
    script_handle,
    script_method,
    script_method_names,
    script_tensors,
)
from tbscope.sources.torchscript.archive import Loaded, load_script
from tbscope.sources.torchscript.detect import has_torchscript, is_function, is_script
from tbscope.sources.torchscript.io_names import inputs_of
from tbscope.sources.torchscript.reader import ScriptReader
from tbscope.sources.torchscript.values import ScriptObject, class_name, lowered
from tbscope.sources.torchscript.walk import ScriptFrame, ScriptWalk
from tbscope.utils.gc_pause import collecting_rarely
from tbscope.utils.validation import Dtypes, InputSize, check_truth

__all__ = ["from_torchscript"]


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
        InputError: The inputs are too many, too few, or of the wrong type.
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
            loaded = load_script(script)
        elif is_script(script):
            loadable = script if is_function(script) else script_handle(script)
            loaded = Loaded(loadable, lambda name: None, None)
        else:
            raise ArgumentError(
                f"from_torchscript was given {describe_type(script)}",
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


def _graph_of(
    loaded: Loaded,
    training: bool | None,
    given: tuple[Any, Mapping[str, Any] | None, DummyInputs],
) -> Graph:
    """Read a module or a function with its inputs; return its graph."""
    script = loaded.module
    root, modules = None, {}
    if is_function(script):
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
    inputs, as_traced = inputs_of(
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
    return reader.finish(result_paths(result), result, modules)


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
