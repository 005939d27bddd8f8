"""The operations of a scripted module in the order of its code, each in one of its inner modules.

TorchScript keeps a graph for each method: which operations it has, which lines they come from,
and which methods of which inner modules it calls.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import torch

from tbscope.sources.torch.module_internals import script_graph

__all__ = ["Block", "ScriptSteps", "Step"]

_Line: TypeAlias = tuple[str, int]

# How TorchScript writes where something comes from: in a scripted module, and in a traced one.
_RANGES = (re.compile(r'File "(.+?)", line ([0-9]+)'), re.compile(r"\A(.+?)\(([0-9]+)\): "))
_NOWHERE = ("??", 0)
# A module may call itself.
_DEEPEST = 100


class Block(NamedTuple):
    """A branch or a loop in the code: what is in it may run never, or several times.

    Attributes:
        path: The inner module in whose code it is.
        number: Which block of the whole code it is.
    """

    path: str
    number: int


class Step(NamedTuple):
    """One operation in the code of a scripted module.

    Attributes:
        path: The inner module in which it is, as a dotted path from the scripted one.
        lines: The lines of the calls that lead to it, outermost first; the last is its own.
        block: The innermost block in which it is; None where it runs once.
    """

    path: str
    lines: tuple[_Line, ...]
    block: Block | None


class ScriptSteps:
    """The steps of one scripted module.

    Args:
        module: The module.

    Attributes:
        steps: All of its forward, in the order of the code.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._numbers = itertools.count(1)
        self.steps = list(self._method("", "forward", (), None))
        self._by_lines: dict[tuple[_Line, ...], list[int]] = {}
        for at, step in enumerate(self.steps):
            self._by_lines.setdefault(step.lines, []).append(at)

    def at(self, lines: tuple[_Line, ...]) -> list[int]:
        """Return the positions of the steps that a stack of lines may be at, in order.

        A step may call functions, of which the stack has lines of its own.
        """
        for count in range(len(lines), 0, -1):
            found = self._by_lines.get(lines[:count])
            if found:
                return found
        return []

    def _method(
        self, path: str, name: str, outer: tuple[_Line, ...], block: Block | None
    ) -> Iterator[Step]:
        module = self._inner(path)
        graph = None if module is None else script_graph(module, name)
        if graph is None or len(outer) > _DEEPEST:
            return
        owners = {next(iter(graph.inputs())).debugName(): path}
        # Blocks that are being walked, each with where it stands; a stack replaces recursion.
        walked = [(graph.nodes(), block)]
        while walked:
            nodes, block = walked[-1]
            node = next(nodes, None)
            if node is None:
                walked.pop()
                continue
            kind = node.kind()
            given = [value.debugName() for value in node.inputs()]
            if kind == "prim::GetAttr" and given[0] in owners:
                inner = f"{owners[given[0]]}.{node.s('name')}".removeprefix(".")
                if self._inner(inner) is not None:
                    owners[node.output().debugName()] = inner
            elif kind == "prim::CallMethod" and given[0] in owners:
                lines = (*outer, _line_of(node))
                yield from self._method(owners[given[0]], node.s("name"), lines, block)
            elif kind == "prim::CallFunction" or not kind.startswith("prim::"):
                yield Step(path, (*outer, _line_of(node)), block)
            else:
                walked += [
                    (inside.nodes(), Block(path, next(self._numbers)))
                    for inside in reversed(list(node.blocks()))
                ]

    def _inner(self, path: str) -> torch.nn.Module | None:
        module: torch.nn.Module | None = self._module
        for name in path.split(".") if path else ():
            children = {} if module is None else dict(module._modules.items())
            module = children.get(name)
        return module


def _line_of(node: Any) -> _Line:
    text = node.sourceRange()
    for pattern in _RANGES:
        found = pattern.search(text)
        if found:
            return found[1], int(found[2])
    return _NOWHERE
