"""Frames: the methods and functions that are being read, and what their values hold."""

from collections.abc import Callable, Mapping
from typing import Any

from tbscope.ir.graph import Source
from tbscope.sources.programs.slots import Held
from tbscope.sources.torchscript.held import Part, lowered

__all__ = ["PLUMBING", "Frame", "give"]


class Frame:
    """One method or function while it is read.

    Args:
        part: The object whose method it is; None for a function.
        function: Its name.
        stack: The module calls around it (`Places.scope_of`).
        source: The line of the call.

    Attributes:
        values: What each value of its graph holds, by number.
    """

    __slots__ = ("function", "part", "source", "stack", "values")

    def __init__(
        self,
        part: Part | None,
        function: str,
        stack: Mapping[str, Any],
        source: Source | None,
    ) -> None:
        self.part = part
        self.function = function
        self.stack = stack
        self.source = source
        self.values: dict[int, Held] = {}


def give(node: Any, frame: Frame, held: list[Held]) -> None:
    """Have the outputs of a node hold what it gives."""
    for value, each in zip(node.outputs(), held, strict=False):
        frame.values[value.unique()] = each


def _list(node: Any, frame: Frame) -> None:
    give(node, frame, [[frame.values[value.unique()] for value in node.inputs()]])


def _tuple(node: Any, frame: Frame) -> None:
    give(node, frame, [tuple([frame.values[value.unique()] for value in node.inputs()])])


def _dict(node: Any, frame: Frame) -> None:
    given = [frame.values[value.unique()] for value in node.inputs()]
    keys = [key if type(key) in _KEYS else str(lowered(key)) for key in given[::2]]
    give(node, frame, [dict(zip(keys, given[1::2], strict=True))])


def _slice(node: Any, frame: Frame) -> None:
    nest = frame.values[node.input().unique()]
    give(node, frame, [nest[node.i("beg") : node.i("end")]])


def _same(node: Any, frame: Frame) -> None:
    given = next(iter(node.inputs()))
    give(node, frame, [frame.values[given.unique()]])


def _nothing(node: Any, frame: Frame) -> None:
    give(node, frame, [None] * node.outputsSize())


def _object(node: Any, frame: Frame) -> None:
    give(node, frame, [Part(None, node.output().type().annotation_str)])


_KEYS = (str, int, float, bool)

PLUMBING: dict[str, Callable[[Any, Frame], None]] = {
    "prim::ListConstruct": _list,
    "prim::TupleConstruct": _tuple,
    "prim::DictConstruct": _dict,
    "prim::TupleSlice": _slice,
    "prim::CreateObject": _object,
    "prim::Print": _nothing,
    "prim::RaiseException": _nothing,
    "prim::Uninitialized": _nothing,
    "prim::Enter": _nothing,
    "prim::Exit": _nothing,
    "aten::warn": _nothing,
    "aten::wait": _same,
    "prim::awaitable_wait": _same,
    "prim::unchecked_cast": _same,
    "prim::unchecked_unwrap_optional": _same,
    "aten::_unwrap_optional": _same,
    "prim::NumToTensor": _same,
}
"""What reads a node that only hands on what it is given, by what TorchScript calls it."""
