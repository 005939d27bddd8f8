"""Graphs of TorchScript: of modules and functions that torch.jit traced or scripted."""

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tbscope.collector import collecting_rarely
from tbscope.errors import ArgumentError, TbscopeError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Graph
from tbscope.sources.programs.borders import result_paths
from tbscope.sources.programs.places import Places, label_of
from tbscope.sources.programs.slots import Held, Slot
from tbscope.sources.programs.state import State, state_of
from tbscope.sources.torch.module_internals import (
    script_class,
    script_handle,
    script_method,
    script_method_names,
)
from tbscope.sources.torch.signatures import with_article
from tbscope.sources.torchscript.archive import Loaded, load_script
from tbscope.sources.torchscript.borders import Inputs, accepts
from tbscope.sources.torchscript.frames import Frame
from tbscope.sources.torchscript.held import Number, Part, class_name, lowered
from tbscope.sources.torchscript.kinds import has_torchscript, is_function, is_script
from tbscope.sources.torchscript.modules import ScriptPart, modules_of
from tbscope.sources.torchscript.script_reader import ScriptReader
from tbscope.sources.torchscript.walk import Walk
from tbscope.words import error_text, shown

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
        with collecting_rarely():
            return _read(script_or_path, loaded, training, args, kwargs)


def _read(
    given: Any,
    loaded: Loaded,
    training: bool | None,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any],
) -> Graph:
    """Read what was loaded; say in words where torch cannot tell of it."""
    try:
        return _Script(loaded, training, args or ()).graph(args, kwargs)
    except TbscopeError:
        raise
    except RuntimeError as error:
        # Of a file, torch reads some only now: where its lines come from.
        deep = isinstance(error, RecursionError)
        raise ArgumentError(
            f"no graph can be read of {shown(given)}",
            why="its calls and blocks nest deeper than tbscope follows"
            if deep
            else f"torch raised {error_text(error)}",
            fix="draw a part of it: tbscope.from_torchscript(module.part)"
            if deep
            else "where it is a file, it is damaged: copy it, or write it, anew",
        ) from error


class _Script:
    """One module or function while it is read."""

    def __init__(self, loaded: Loaded, training: bool | None, args: Sequence[Any]) -> None:
        self._training = training
        script = loaded.module
        self._loaded = loaded
        self._parts: dict[str, ScriptPart] = {}
        kinds: dict[str, Any] = {}
        tensors: dict[str, Any] = {}
        self._part: Part | None = None
        if is_function(script):
            self._method = script
            label = script.name or "function"
        else:
            self._method = _method_of(script, args)
            self._parts = modules_of(script)
            self._part = Part("", script_class(script), script)
            label = class_name(self._part.kind)
            kinds, tensors = state_of(self._parts)
        self._classes: dict[str, str] = {}
        self._builder = GraphBuilder(label_of(label))
        self._places = Places(self._builder, self._class_of)
        self._reader = ScriptReader(self._builder, self._places)
        if self._part is not None:
            self._places.open_root(label)
        self._state = State(self._reader, kinds, tensors)

    def _class_of(self, name: str) -> str:
        known = self._classes.get(name)
        if known is None:
            part = self._parts.get(name)
            known = self._classes[name] = class_name("" if part is None else part.kind)
        return known

    def graph(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any]) -> Graph:
        """Read the module or function with its inputs; return its graph."""
        reader, part = self._reader, self._part
        graph = self._method.graph
        values = list(graph.inputs())[0 if part is None else 1 :]
        name = self._builder.graph.name
        noted = self._loaded.traced_with
        inputs = Inputs(name, self._method, values, args, kwargs, noted)
        for name, held in zip(inputs.names, inputs.held, strict=True):
            for path, slot in _slots_of(held, name):
                slot.value = reader.add_source("input", path, slot.type)
        walk = Walk(
            reader,
            self._state,
            functions=self._loaded.functions,
            training=self._training,
            trusts_types=inputs.as_traced,
        )
        frame = Frame(part, self._method.name, {}, lambda: None)
        given = inputs.held if part is None else [part, *inputs.held]
        results = walk.graph(graph, given, frame)
        result = results[0] if len(results) == 1 else tuple(results)
        self._describe_root(inputs, result)
        return self._state.finish(result_paths(lowered(result)), self._parts, self._class_of)

    def _describe_root(self, inputs: Inputs, result: Held) -> None:
        """Tell what the whole was given and gave, and in which mode each module is."""
        reader, places = self._reader, self._places
        for scope, call in places.call_of.items():
            part = self._parts.get(scope.qualified_name or "")
            if part is not None:
                call.training = part.training if self._training is None else self._training
        if places.root is None:
            return
        root = places.call_of[places.root]
        root.results = reader.nest(lowered(result))
        root.arguments = [
            Argument(name, reader.nest(lowered(held)))
            for name, held in zip(inputs.names, inputs.held, strict=True)
        ]


def _slots_of(held: Held, name: str) -> list[tuple[str, Slot]]:
    return [] if type(held) is Number else result_paths(lowered(held), name)


def _method_of(handle: Any, args: Sequence[Any]) -> Any:
    """Return the method that is the model: forward, or the only one that there is.

    A forward of several kinds (that of an LSTM) is one method for each: the first that takes what
    is given, else the first.
    """
    names = script_method_names(handle)
    kinds = [name for name in names if _OF_A_KIND.fullmatch(name)]
    methods = [script_method(handle, name) for name in kinds]
    fitting = [method for method in methods if accepts(method.schema, args)]
    method = script_method(handle, "forward") or next(iter(fitting or methods), None)
    if method is None and len(names) == 1:
        method = script_method(handle, names[0])
    if method is not None:
        return method
    name = class_name(script_class(handle)).rpartition(".")[2]
    raise ArgumentError(
        f"no graph can be read of a scripted {name}",
        why=f"it has no forward, and {len(names)} other methods" if names else "it has no forward",
        fix="script a module whose forward is to be drawn",
    )


_OF_A_KIND = re.compile("forward__[0-9]+")
