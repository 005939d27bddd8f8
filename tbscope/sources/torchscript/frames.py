"""Frames: the methods and functions that are being read, and what their values hold."""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from tbscope.ir.graph import Source
from tbscope.sources.programs.slots import Held
from tbscope.sources.torchscript.held import Part, lowered
from tbscope.sources.torchscript.ports import gives, nodes_of, numbers
from tbscope.sources.torchscript.types import gives_tensors

__all__ = ["PLUMBING", "Frame", "give"]


class Frame:
    """One method or function while it is read.

    Args:
        part: The object whose method it is; None for a function.
        function: Its name.
        stack: The module calls around it (`Places.scope_of`).
        line: Tells the line of the call.
        outer: What calls it, where it is no call of a module of its own; None for any other.

    Attributes:
        values: What each value of its graph holds, by number.
        graph: Its graph.
    """

    __slots__ = (
        "_has_others",
        "_line",
        "_source",
        "function",
        "graph",
        "outer",
        "part",
        "stack",
        "values",
    )

    def __init__(
        self,
        part: Part | None,
        function: str,
        stack: Mapping[str, Any],
        line: Callable[[], Source | None],
        outer: "Frame | None" = None,
    ) -> None:
        self.part = part
        self.function = function
        self.stack = stack
        self._line: Callable[[], Source | None] | None = line
        self._source: Source | None = None
        self.outer = outer
        self.values: dict[int, Held] = {}
        self.graph: Any = None
        self._has_others: bool | None = None

    @property
    def source(self) -> Source | None:
        """The line of the call: few of its operations have none of their own, and ask for it."""
        if self._line is not None:
            self._source, self._line = self._line(), None
        return self._source

    def has_others(self) -> bool:
        """Tell whether its call has operations that do not just give back what they got."""
        if self._has_others is None:
            self._has_others = self._works(1) or self._runs_in_others()
        return self._has_others

    def _runs_in_others(self) -> bool:
        """Tell whether what calls it, a function of a module, has other operations."""
        outer = self.outer
        return outer is not None and (outer._works(2) or outer._runs_in_others())

    def _works(self, least: int) -> bool:
        """Tell whether so many of its nodes call something, or make tensors."""
        nodes = [] if self.graph is None else nodes_of(self.graph)
        return len(list(islice(filter(_is_work, nodes), least))) == least


def _is_work(step: tuple[str, Any]) -> bool:
    """Tell whether a node calls something, or is an operation that makes tensors."""
    kind, node = step
    if kind in ("prim::CallMethod", "prim::CallFunction"):
        return True
    return (
        kind.startswith("aten::")
        and kind not in _MAY_GIVE_BACK
        and any(gives_tensors(value.type()) for value in gives(node))
    )


_MAY_GIVE_BACK = frozenset(
    f"aten::{name}"
    for name in (
        *("to", "contiguous", "detach", "dropout", "feature_dropout", "alpha_dropout", "expand"),
        *("view", "reshape", "type_as", "float", "flatten", "squeeze", "type"),
    )
)


def give(node: Any, frame: Frame, held: list[Held]) -> None:
    """Have the outputs of a node hold what it gives."""
    at, values = node.outputsAt, frame.values
    if len(held) == 1:
        # As nearly all do.
        if node.outputsSize():
            values[at(0).unique()] = held[0]
        return
    for place, each in zip(range(node.outputsSize()), held, strict=False):
        values[at(place).unique()] = each


def _list(node: Any, frame: Frame) -> None:
    give(node, frame, [[frame.values[number] for number in numbers(node)]])


def _tuple(node: Any, frame: Frame) -> None:
    give(node, frame, [tuple([frame.values[number] for number in numbers(node)])])


def _dict(node: Any, frame: Frame) -> None:
    given = [frame.values[number] for number in numbers(node)]
    keys = [key if type(key) in _KEYS else str(lowered(key)) for key in given[::2]]
    give(node, frame, [dict(zip(keys, given[1::2], strict=True))])


def _slice(node: Any, frame: Frame) -> None:
    nest = frame.values[node.input().unique()]
    give(node, frame, [nest[node.i("beg") : node.i("end")]])


def _same(node: Any, frame: Frame) -> None:
    give(node, frame, [frame.values[node.inputsAt(0).unique()]])


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
    "prim::unchecked_cast": _same,
    "prim::unchecked_unwrap_optional": _same,
    "aten::_unwrap_optional": _same,
    "prim::NumToTensor": _same,
}
"""What reads a node that only hands on what it is given, by what TorchScript calls it."""
