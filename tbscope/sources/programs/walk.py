"""The walk over the nodes of a program, in order, and into the bodies of its operations."""

from typing import Any

import torch

from tbscope.ir.graph import Constant
from tbscope.sources.programs.between import stacks_between
from tbscope.sources.programs.bodies import Body, call_with_bodies
from tbscope.sources.programs.functions import call_python
from tbscope.sources.programs.places import class_name_of
from tbscope.sources.programs.reader import Reader
from tbscope.sources.programs.slots import Held
from tbscope.sources.programs.state import State
from tbscope.sources.torch.internals import is_higher_order, is_operator

__all__ = ["Walk", "classes_in"]


class Walk:
    """Reads the nodes of a program.

    Args:
        reader: Who reads each of them.
        state: What the program holds.
        prefix: The path of its attributes in the whole, which ends in a dot; empty for the whole.

    Attributes:
        runs: Whether functions are called on stand-ins that are no operators of torch's.
    """

    runs = False

    def __init__(self, reader: Reader, state: State, prefix: str = "") -> None:
        self.reader = reader
        self.state = state
        self.prefix = prefix

    def read(self, module: torch.fx.GraphModule) -> list[Held]:
        """Read the nodes of a program, or of a body; return what it gives, flat."""
        given = self.result(module)
        return list(given) if isinstance(given, tuple | list) else [given]

    def result(self, module: torch.fx.GraphModule) -> Held:
        """Read the nodes of a program; return what it gives, in its nest."""
        held = self.reader.held
        self.reader.between.update(stacks_between(module.graph))
        for node in module.graph.nodes:
            if node.op == "call_function":
                held[node] = self._call(node)
            elif node.op == "get_attr":
                held[node] = self._attribute(module, node)
            elif node.op == "output":
                return self.reader.of(node.args[0])
            elif node.op != "placeholder":
                held[node] = self.call_part(module, node)
        return None

    def call_part(self, module: torch.fx.GraphModule, node: torch.fx.Node) -> Held:
        """Read a node that calls a module or a method."""
        return Constant(f"<{node.target}>")

    def _call(self, node: torch.fx.Node) -> Held:
        target: Any = node.target
        if is_operator(target):
            return self.reader.call_operator(node)
        if is_higher_order(target):
            return call_with_bodies(self.reader, node, self.read_body)
        # Of Python's functions, an exported program calls those on numbers, and getitem.
        return call_python(self.reader, node, runs=self.runs)

    def read_body(self, body: Body, given: list[Held]) -> list[Held]:
        """Read the nodes of a body with what it is given; return what it gives, flat."""
        places = (node for node in body.module.graph.nodes if node.op == "placeholder")
        self.reader.held.update(zip(places, given, strict=False))
        return self.read(body.module)

    def _attribute(self, module: torch.fx.GraphModule, node: torch.fx.Node) -> Held:
        name = str(node.target)
        thing: Any = module
        for step in name.split("."):
            thing = getattr(thing, step, None)
        if isinstance(thing, torch.fx.GraphModule):
            return Body(name, thing)
        if isinstance(thing, torch.Tensor) or self.reader.type_of(node) is not None:
            return self.state.held(self.prefix + name, thing, self.reader.type_of(node))
        return thing if isinstance(thing, bool | int | float | str) else Constant(f"<{name}>")


def classes_in(module: torch.fx.GraphModule) -> dict[str, str]:
    """Return the full name of the class of each module that was called, by qualified name."""
    found: dict[str, str] = {}
    met: set[Any] = set()
    for node in module.graph.nodes:
        for key, entry in (node.meta.get("nn_module_stack") or {}).items():
            if key not in met and isinstance(entry, tuple) and len(entry) == 2:
                met.add(key)
                found.setdefault(str(entry[0]).partition("@")[0], class_name_of(entry[1]))
    return found
