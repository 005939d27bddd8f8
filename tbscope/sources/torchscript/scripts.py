"""Graphs of TorchScript: of modules and functions that torch.jit traced or scripted."""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tbscope.errors import ArgumentError, TbscopeError
from tbscope.ir.graph import Graph
from tbscope.messages import error_text, shown
from tbscope.sources.fx.io_names import result_paths
from tbscope.sources.fx.scopes import Places
from tbscope.sources.fx.state import state_of
from tbscope.sources.torch.calling.signatures import with_article
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
from tbscope.sources.torchscript.values import Number, Part, class_name, lowered
from tbscope.sources.torchscript.walk import Frame, Walk
from tbscope.utils.gc_pause import collecting_rarely

__all__ = ["from_torchscript", "graph_of_script"]


def from_torchscript(script_or_path: Any, *inputs: Any) -> Graph:
    """Return the graph of what torch.jit traced or scripted; its forward never runs.

    Each call of a module has a scope of its own; parameters, buffers and constants have their
    qualified names. Branches and loops of which the code alone does not tell how they run stand
    in scopes, each body once. Shapes are those that a trace tells, else they follow from those of
    the inputs, where these are given: operations run on stand-ins.

    Args:
        script_or_path: What `torch.jit.trace`, `torch.jit.script` or `torch.jit.freeze` gave, or
            the path of a file that `torch.jit.save` has written. torch loads the file, and runs
            what it has it run: the path of a file is trusted as by `torch.jit.load`.
        inputs: Its positional arguments; tensors on "meta" will do. None where the shapes are
            known, or may stay unknown.
    Raises:
        ArgumentError: It is neither, or torch cannot load the file; or this torch has no
            TorchScript.
        InputError: The inputs are more, or fewer, than it takes.
    """
    return graph_of_script(script_or_path, inputs or None, {})


def graph_of_script(
    script_or_path: Any,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any],
    *,
    training: bool | None = None,
) -> Graph:
    """Return the graph of what TorchScript holds, with inputs by position and by name.

    Args:
        script_or_path: As for `from_torchscript`.
        args: Its positional arguments; None for none.
        kwargs: Its keyword arguments.
        training: In which mode its modules are read; None for that which each is in. What was
            traced does what it did.
    """
    script = script_or_path
    if not has_torchscript():
        raise ArgumentError(
            "no graph can be read of TorchScript",
            why=f"torch {torch.__version__} has no torch.jit",
            fix="give the model itself: tbscope.trace(model, input)",
        )
    # What torch says of TorchScript's end is nothing that its reader has done.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(script, str | os.PathLike):
            loaded = load_script(script)
        elif is_script(script):
            held = script if is_function(script) else script_handle(script)
            loaded = Loaded(held, lambda name: None, None)
        else:
            raise ArgumentError(
                f"from_torchscript was given {with_article(script)}",
                why="it takes what torch.jit.trace or torch.jit.script gave, or the path of a "
                "file that torch.jit.save has written",
                fix="tbscope.from_torchscript(torch.jit.trace(model, x))",
            )
        try:
            with collecting_rarely():
                return _graph_of(loaded, training, args, kwargs)
        except TbscopeError:
            raise
        except RuntimeError as error:
            # Of a file, torch reads some only now: where its lines come from.
            deep = isinstance(error, RecursionError)
            raise ArgumentError(
                f"no graph can be read of {shown(script)}",
                why="its calls and blocks nest deeper than tbscope follows"
                if deep
                else f"torch raised {error_text(error)}",
                fix="draw a part of it: tbscope.from_torchscript(module.part)"
                if deep
                else "where it is a file, it is damaged: copy it, or write it, anew",
            ) from error


def _graph_of(
    loaded: Loaded,
    training: bool | None,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any],
) -> Graph:
    """Read a module or a function with its inputs; return its graph."""
    script = loaded.module
    part, parts = None, {}
    if is_function(script):
        method, label = script, script.name or "function"
    else:
        method = _method_of(script)
        parts = _modules_of(script)
        part = Part("", script_class(script), script)
        label = class_name(part.kind)
    places = Places(label, lambda name: class_name(parts[name].kind if name in parts else ""))
    if part is not None:
        places.open_root(label)
    reader = ScriptReader(places, *state_of(parts))
    graph = method.graph
    values = list(graph.inputs())[0 if part is None else 1 :]
    inputs, as_traced = inputs_of(
        reader.graph.name, method, values, args, kwargs, loaded.traced_with
    )
    arguments = {name: lowered(held) for name, held in inputs.items()}
    leaves = {name: held for name, held in arguments.items() if type(inputs[name]) is not Number}
    reader.take(leaves.items(), arguments.items())
    walk = Walk(
        reader,
        functions=loaded.functions,
        training=training,
        trusts_types=as_traced,
    )
    frame = Frame(part, method.name, {}, lambda: None)
    own = [] if part is None else [part]
    results = walk.block(graph, [*own, *inputs.values()], frame)
    result = lowered(results[0] if len(results) == 1 else tuple(results))
    for call in reader.graph.calls:
        module = parts.get(call.qualified_name or "")
        if module is not None:
            call.training = module.training if training is None else training
    return reader.finish(result_paths(result), result, parts)


def _method_of(handle: Any) -> Any:
    """Return the method that is the model: forward, or the only one that there is.

    A forward of several kinds (that of an LSTM) is one method for each: the first of them.
    """
    names = script_method_names(handle)
    first = [name for name in names if name in ("forward", "forward__0")]
    if first or len(names) == 1:
        return script_method(handle, (first or names)[0])
    name = class_name(script_class(handle)).rpartition(".")[2]
    raise ArgumentError(
        f"no graph can be read of a scripted {name}",
        why=f"it has no forward, and {len(names)} other methods" if names else "it has no forward",
        fix="script a module whose forward is to be drawn",
    )


class _Module:
    """A module, as TorchScript holds it.

    Args:
        handle: What holds it.
    """

    __slots__ = ("_buffers", "_parameters", "handle")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._parameters, self._buffers = script_tensors(handle)

    @property
    def kind(self) -> str:
        """The name of its class, as TorchScript has it."""
        return script_class(self.handle)

    @property
    def training(self) -> bool:
        """Whether it is trained; what is frozen is not."""
        return bool(self.handle.hasattr("training") and self.handle.getattr("training"))


def _modules_of(handle: Any) -> dict[str, _Module]:
    """Return the modules in one, itself with the name "", in the order of the tree."""
    found: dict[str, _Module] = {}
    pending = [("", handle)]
    while pending:
        name, handle = pending.pop()
        found[name] = _Module(handle)
        inner = reversed(script_children(handle))
        pending += [(f"{name}.{own}" if name else own, part) for own, part in inner]
    return found
