"""Tells how two graphs differ: everything that each holds is compared, by its fields.

It asks the classes for their fields, so a field that is new is compared, too.
"""

import dataclasses
from typing import Any

from tbscope.ir.graph import Graph
from tbscope.ir.scopes import Scope

_MOST = 20


def differences(one: Graph, other: Graph) -> list[str]:
    """Give a line for each place where two graphs differ, at most twenty; none for equal ones."""
    comparison = _Comparison()
    comparison.compare(one, other, "graph")
    return comparison.found


class _Comparison:
    def __init__(self) -> None:
        self.found: list[str] = []
        # What stands in one graph for what stands in the other: always the same.
        self._twins: dict[int, Any] = {}
        self._pending: list[tuple[Any, Any, str]] = []

    def compare(self, one: Any, other: Any, place: str) -> None:
        self._pending.append((one, other, place))
        while self._pending and len(self.found) < _MOST:
            self._one_pair(*self._pending.pop())

    def _one_pair(self, one: Any, other: Any, place: str) -> None:
        if type(one) is not type(other):
            self.found.append(f"{place}: {type(one).__name__} and {type(other).__name__}")
        elif isinstance(one, list | tuple):
            if len(one) != len(other):
                self.found.append(f"{place}: {len(one)} and {len(other)} entries")
            for index, pair in enumerate(zip(one, other, strict=False)):
                self._pending.append((*pair, f"{place}[{index}]"))
        elif isinstance(one, dict):
            # In order: dicts are told in theirs.
            self._pending.append((list(one.items()), list(other.items()), place))
        elif dataclasses.is_dataclass(one) or isinstance(one, Scope):
            self._fields(one, other, place)
        elif one != other if type(one) is int else repr(one) != repr(other):
            # By their text, a number that is none is itself, and 0.0 is not -0.0.
            self.found.append(f"{place}: {one!r} and {other!r}")

    def _fields(self, one: Any, other: Any, place: str) -> None:
        if type(one).__hash__ is object.__hash__:
            if id(one) in self._twins:
                if self._twins[id(one)] is not other:
                    self.found.append(f"{place}: another {type(one).__name__} than before")
                return
            self._twins[id(one)] = other
            if id(other) in self._twins and self._twins[id(other)] is not one:
                self.found.append(f"{place}: one {type(one).__name__} in place of two")
            self._twins[id(other)] = one
        names = (
            [name for name in Scope.__slots__ if name != "_path"]
            if isinstance(one, Scope)
            else [field.name for field in dataclasses.fields(one)]
        )
        for name in names:
            self._pending.append((getattr(one, name), getattr(other, name), f"{place}.{name}"))
