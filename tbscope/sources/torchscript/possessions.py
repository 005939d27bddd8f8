"""The constants of TorchScript's code, and the attributes of its modules and objects."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tbscope.sources.programs.slots import Held, Slot
from tbscope.sources.programs.state import State
from tbscope.sources.programs.types import type_nest
from tbscope.sources.torch.module_internals import script_class
from tbscope.sources.torch.wrapping import content_of
from tbscope.sources.torchscript.frames import Frame
from tbscope.sources.torchscript.held import FLAT, Number, Part
from tbscope.sources.torchscript.ports import numbers
from tbscope.sources.torchscript.script_reader import ScriptReader

__all__ = ["Possessions"]


class Possessions:
    """What a program has before it runs.

    Args:
        reader: Who reads the program.
        state: Its parameters, buffers and constants.
        training: In which mode modules are read; None for that which each is in.
    """

    def __init__(self, reader: ScriptReader, state: State, training: bool | None) -> None:
        self.reader = reader
        self.state = state
        self.training = training

    def constant(self, node: Any, frame: Frame) -> None:
        """Read a node that gives a constant."""
        output = node.output()
        thing = output.toIValue()
        if type(thing) not in FLAT:
            # A function is called by its name.
            known = output.type().kind() != "FunctionType"
            leaf_of = partial(self._constant, frame=frame)
            thing = _nest(thing, output.debugName(), leaf_of) if known else None
        frame.values[output.unique()] = thing

    def foreign(self, node: Any, frame: Frame) -> None:
        """Read a node that gives a constant tensor in the form of another library."""
        output = node.output()
        held = self._constant_tensor(node.t("value"), output.debugName(), frame)
        frame.values[output.unique()] = held

    def _constant(self, thing: Any, name: str, frame: Frame) -> Held:
        """Return what a constant of the code is, where that holds nothing else."""
        if not isinstance(thing, torch.Tensor):
            return thing
        if thing.dim() == 0 and thing.layout is torch.strided and not thing.is_meta:
            return thing.item()
        return self._constant_tensor(thing, name, frame)

    def _constant_tensor(self, tensor: torch.Tensor, name: str, frame: Frame) -> Slot:
        typed = type_nest(tensor)
        stack = frame.stack
        # What was frozen has the name that it had as a parameter.
        own = name.removeprefix("self.") if name.startswith("self.") else None

        def make() -> Any:
            scope = self.reader.places.scope_of(stack, None)
            content = content_of(tensor)
            return self.reader.add_source("constant", own, typed, scope=scope, attributes=content)

        return Slot(typed, make=make)

    def get(self, node: Any, frame: Frame) -> None:
        """Read a node that gives an attribute of an object."""
        part = frame.values[node.input().unique()]
        name = node.s("name")
        if type(part) is not Part:
            held: Held = Number(name)
        elif name == "training" and self.training is not None and part.name is not None:
            held = self.training
        elif name in part.attributes:
            held = part.attributes[name]
        elif part.handle is None:
            held = Number(name)
        else:
            path = f"{part.name}.{name}" if part.name else name
            leaf_of = partial(self._attribute, owner=path)
            held = part.attributes[name] = _nest(part.handle.getattr(name), path, leaf_of)
        frame.values[node.output().unique()] = held

    def _attribute(self, thing: Any, name: str, owner: str) -> Held:
        """Return what is in the attribute of such a name, where that holds nothing else."""
        if isinstance(thing, torch.Tensor):
            # What is in a list has no name of its own, where it is a parameter.
            own = None if name == owner else self.state.name_of(thing)
            return self.state.held(own or name, thing)
        if hasattr(thing, "_type"):
            # To ask a handle for what it does not have takes long.
            handle = thing if hasattr(type(thing), "_type") else getattr(thing, "_c", thing)
            return Part(name, script_class(handle), handle)
        return thing

    def set(self, node: Any, frame: Frame) -> None:
        """Read a node that sets an attribute of an object."""
        owner, value = (frame.values[number] for number in numbers(node))
        if type(owner) is Part:
            self.reader.change(owner.attributes)
            owner.attributes[node.s("name")] = value


def _nest(thing: Any, name: str, leaf_of: Callable[[Any, str], Held]) -> Held:
    """Return a constant or the content of an attribute, as it is held.

    Args:
        thing: The constant, or the content.
        name: Its name; an entry has that with its key.
        leaf_of: Returns how something is held that is no list and no dict, by its name.
    """
    if type(thing) in FLAT:
        return thing
    if isinstance(thing, list | tuple):
        return type(thing)([_nest(each, f"{name}.{at}", leaf_of) for at, each in enumerate(thing)])
    if isinstance(thing, dict):
        return {key: _nest(each, f"{name}.{key}", leaf_of) for key, each in thing.items()}
    return leaf_of(thing, name)
