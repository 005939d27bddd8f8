"""Where each node of an ONNX model comes from, in whichever way the file tells it."""

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import takewhile
from typing import Any

from tbscope.sources.onnx.flatten import FRAME, Frame
from tbscope.sources.onnx.metadata import (
    Level,
    Origin,
    origin_by_metadata,
    origin_by_name,
    origin_by_parameters,
    properties,
    whole_origin,
)

__all__ = ["OF_MODULE", "Origins", "filled", "frame_number", "joined"]

OF_MODULE = "tbscope.module"
"""The metadata of a function that is a module: the full name of its class.

What the nodes of its body tell of their modules is counted from that module, as several modules
may share one function.
"""


def frame_number(node: Any) -> int:
    """Return the number of the call of a function that a node came from; 0 for none."""
    for entry in node.metadata_props:
        if entry.key == FRAME:
            return int(entry.value)
    return 0


def joined(outer: str, inner: str) -> str:
    """Return the qualified name of what has a name inside of a module.

    >>> joined("layers.0", "q"), joined("", "fc"), joined("fc", "")
    ('layers.0.q', 'fc', 'fc')
    """
    return ".".join(filter(None, [outer, inner]))


class Origins:
    """The origins of the nodes of one model.

    Args:
        nodes: Its nodes, without functions.
        frames: The calls of functions that they came from.
        parameters: The names of its parameters.
    """

    def __init__(
        self, nodes: Sequence[Any], frames: Mapping[int, Frame], parameters: Set[str]
    ) -> None:
        self._frames = frames
        self._parameters = parameters
        self._bases: dict[int, str] = {}
        self._of: dict[tuple[str, ...], Origin] = {}
        called = [frame.node for frame in frames.values() if frame.parent is None]
        top = [node for node in nodes if not self._number(node)]
        ways = (self._by_metadata, self._by_name, self._by_parameters)
        self._way = next((way for way in ways if any(map(way, [*top, *called]))), self._by_metadata)
        self._add(nodes, ())

    def of(self, node: Any) -> Origin | None:
        """Return the origin of a node, counted from the operation whose body it stands in."""
        return self._of.get(tuple(node.output))

    def of_call(self, frame: Frame) -> Origin | None:
        """Return the origin of the call of a function."""
        if not is_module(frame.function):
            return self._told(frame.node)
        origin = whole_origin(properties(frame.node.metadata_props))
        if origin is None or frame.parent is None:
            return origin
        return self._inside(origin, frame.parent)

    def classes(self) -> dict[str, str | None]:
        """Return the class of each module in which something stands, by its qualified name."""
        frames = self._frames.values()
        origins = [*self._of.values(), *map(self.of_call, frames)]
        found = dict([level for origin in origins if origin for level in origin.levels])
        return {**dict.fromkeys(filter(None, map(self.module_of, frames))), **found}

    def model_class(self) -> str | None:
        """Return the full name of the class of the model; None where nothing tells it."""
        for origin in self._of.values():
            first = origin.levels[0] if origin.levels else None
            if first is not None and not first.name:
                return first.class_name
        for frame in self._frames.values():
            called = self.of_call(frame) if self.module_of(frame) == "" else None
            if called is not None:
                return called.target
        return None

    def _add(self, nodes: Iterable[Any], around: tuple[Level, ...]) -> None:
        """Find the origins of a list of nodes, in the body of an operation of a module."""
        listed = list(nodes)
        told = [self._told(node) for node in listed]
        whole = filled(told, [self._number(node) for node in listed])
        for node, origin in zip(listed, whole, strict=True):
            levels = origin.levels if origin is not None else around
            if origin is not None:
                own = levels[len(_common(levels, around)) :]
                self._of[tuple(node.output)] = origin._replace(levels=own)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self._add(attribute.g.node, levels)

    def _number(self, node: Any) -> int:
        """Return the number of the call of a function that a node came from; 0 for none."""
        return frame_number(node) if self._frames else 0

    def _told(self, node: Any) -> Origin | None:
        """Return what is told of the origin of a node alone, under qualified names."""
        number = self._number(node)
        if not number:
            return self._way(node)
        frame = self._frames[number]
        if not is_module(frame.function):
            return None
        origin = origin_by_metadata(properties(node.metadata_props))
        if origin is None:
            return None
        return self._inside(origin, frame)

    def _inside(self, origin: Origin, frame: Frame) -> Origin:
        """Return the origin of a node of a function under qualified names, from the call on."""
        base = self._prefix(frame)
        levels = [level._replace(name=joined(base, level.name)) for level in origin.levels[1:]]
        return origin._replace(levels=tuple(levels))

    def _prefix(self, frame: Frame) -> str:
        """Return the qualified name of the module whose call a frame is."""
        if frame.number not in self._bases:
            origin = whole_origin(properties(frame.node.metadata_props))
            outer = "" if frame.parent is None else self._prefix(frame.parent)
            self._bases[frame.number] = joined(outer, origin.name if origin else "")
        return self._bases[frame.number]

    def module_of(self, frame: Frame) -> str | None:
        """Return the qualified name of the module whose call a frame is; None for no module."""
        return self._prefix(frame) if is_module(frame.function) else None

    def _by_metadata(self, node: Any) -> Origin | None:
        return origin_by_metadata(properties(node.metadata_props))

    def _by_name(self, node: Any) -> Origin | None:
        return origin_by_name(node.name, node.op_type)

    def _by_parameters(self, node: Any) -> Origin | None:
        read = [name for name in node.input if name in self._parameters]
        return origin_by_parameters(read, node.op_type)


def is_module(function: Any) -> bool:
    """Tell whether a function is a module, of which its nodes tell in their metadata."""
    return any(entry.key == OF_MODULE for entry in function.metadata_props)


def filled(told: Sequence[Origin | None], frames: Sequence[int]) -> list[Origin | None]:
    """Return origins, with what is around both neighbours where nothing is told.

    What an exporter put between two nodes of a module stands in that module.
    """
    found = list(told)
    after: list[Origin | None] = [None] * len(found)
    following: Origin | None = None
    for place in range(len(found) - 1, -1, -1):
        if place + 1 < len(found) and frames[place + 1] != frames[place]:
            following = None
        after[place] = following
        following = told[place] or following
    before: Origin | None = None
    for place, origin in enumerate(told):
        if place and frames[place - 1] != frames[place]:
            before = None
        later = after[place]
        if origin is None and (before is not None or later is not None):
            if before is not None and later is not None:
                levels = _common(before.levels, later.levels)
            else:
                # At the ends it is known to be in the model, and no more.
                levels = (before or later or Origin((), "", "")).levels[:1]
            found[place] = Origin(levels, "", "") if levels else None
        before = origin or before
    return found


def _common(one: Sequence[Level], other: Sequence[Level]) -> tuple[Level, ...]:
    pairs = zip(one, other, strict=False)
    return tuple([level for level, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)])
