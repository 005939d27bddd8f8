"""Puts the bodies of local functions in place of their calls, and notes where each came from.

A call of a function is a scope of our graph, and shapes are inferred for the whole at once: so
all bodies are laid out in one list, under names of their own, each node with the number of the
call that it came from.
"""

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from tbscope.errors import ArgumentError
from tbscope.words import shown

__all__ = ["FRAME", "Flat", "Frame", "flatten"]

FRAME = "tbscope.frame"
"""The metadata of a node that tells from which call of a function it came."""

_MOST_NODES = 200_000
_MOST_DEPTH = 100


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One call of a local function.

    Attributes:
        number: Which of the calls it is; 0 is no call.
        parent: The call around it; None at the top.
        node: What calls it, under the names of the model.
        function: What is called.
    """

    number: int
    parent: "Frame | None"
    node: Any
    function: Any


@dataclass(frozen=True, slots=True)
class Flat:
    """A model without functions.

    Attributes:
        nodes: Its nodes, in order.
        frames: The calls that there were, by number.
    """

    nodes: list[Any]
    frames: dict[int, Frame]


def flatten(model: Any) -> Flat:
    """Return the nodes of a model, with those of functions in place of their calls.

    Args:
        model: A `ModelProto`; it stays as it is.
    Raises:
        ArgumentError: A function calls itself, or all bodies together are too many nodes.
    """
    return _Flattening(model).run()


class _Flattening:
    def __init__(self, model: Any) -> None:
        self._graph = model.graph
        self._functions = {_key(one.domain, one.name, one): one for one in model.functions}
        self._frames: dict[int, Frame] = {}
        self._count = 0

    def run(self) -> Flat:
        if not self._functions:
            return Flat(list(self._graph.node), {})
        nodes = self._expand(self._graph.node, {}, {}, None)
        return Flat(nodes, self._frames)

    def _expand(
        self,
        nodes: Iterable[Any],
        names: MutableMapping[str, str],
        attributes: Mapping[str, Any],
        frame: Frame | None,
    ) -> list[Any]:
        """Return nodes under the names of the model, with the attributes of a call."""
        found: list[Any] = []
        for node in nodes:
            self._count += 1
            # Functions that call each other twice double with each.
            if self._count > _MOST_NODES:
                raise ArgumentError(
                    f"the functions of the ONNX model have more than {_MOST_NODES:,} nodes where "
                    "they are called",
                    why="each call draws the body of its function",
                    fix="read a part of the model: onnx.utils.extract_model",
                )
            twin = self._renamed(node, names, attributes, frame)
            function = self._functions.get(_key(node.domain, node.op_type, node))
            if function is None:
                found.append(twin)
            else:
                found += self._called(function, twin, frame)
        return found

    def _called(self, function: Any, node: Any, around: Frame | None) -> list[Any]:
        _check_depth(function, around)
        frame = Frame(len(self._frames) + 1, around, node, function)
        self._frames[frame.number] = frame
        names = dict(zip(function.input, node.input, strict=False))
        for name in function.input[len(node.input) :]:
            names[name] = ""
        passed = [name for name in function.output if name in names]
        for inner, outer in zip(function.output, node.output, strict=False):
            names.setdefault(inner, outer)
        given = {one.name: one for one in function.attribute_proto}
        given.update({one.name: one for one in node.attribute})
        found = self._expand(function.node, _Names(names, frame.number), given, frame)
        # What a function hands on without a node has a name inside and another one outside.
        for inner, outer in zip(function.output, node.output, strict=False):
            if inner in passed and outer:
                twin = type(node)(op_type="Identity", input=[names[inner]], output=[outer])
                _tell(twin, frame)
                found.append(twin)
        return found

    def _renamed(
        self, node: Any, names: MutableMapping[str, str], given: Mapping[str, Any], frame: Any
    ) -> Any:
        """Return a copy of a node under other names, with what its attributes refer to."""
        twin = type(node)()
        twin.CopyFrom(node)
        if frame is not None:
            _tell(twin, frame)
            for listed in (twin.input, twin.output):
                listed[:] = [names[name] if name else "" for name in listed]
            _resolve(twin, given)
        for attribute in twin.attribute:
            if attribute.HasField("g"):
                self._inside(attribute.g, names, given, frame)
        return twin

    def _inside(
        self, graph: Any, names: MutableMapping[str, str], given: Mapping[str, Any], frame: Any
    ) -> None:
        """Put the bodies of functions into the body of an operation."""
        if frame is not None:
            for entry in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
                entry.name = names[entry.name]
        nodes = self._expand(graph.node, names, given, frame)
        del graph.node[:]
        graph.node.extend(nodes)


class _Names(dict[str, str]):
    """The names of a function's values in the model: those it is given, and new ones."""

    def __init__(self, given: Mapping[str, str], number: int) -> None:
        super().__init__(given)
        self._number = number

    def __missing__(self, name: str) -> str:
        self[name] = new = f"{name}@{self._number}"
        return new


def _key(domain: str, name: str, message: Any) -> tuple[str, str, str]:
    return "" if domain == "ai.onnx" else domain, name, getattr(message, "overload", "")


def _check_depth(function: Any, around: Frame | None) -> None:
    """Raise ArgumentError where a function is called in itself, or in too many others."""
    depth, itself = 0, False
    while around is not None and not itself:
        depth, itself, around = depth + 1, around.function is function, around.parent
    if itself or depth >= _MOST_DEPTH:
        raise ArgumentError(
            f"the function {shown(function.name)} of the ONNX model is called inside of "
            f"{depth} calls of functions",
            why="a function calls itself" if itself else "the calls have no end",
            fix="onnx.checker.check_model tells more",
        )


def _tell(node: Any, frame: Frame) -> None:
    entry = node.metadata_props.add()
    entry.key, entry.value = FRAME, str(frame.number)


def _resolve(node: Any, given: Mapping[str, Any]) -> None:
    """Put what a call gave in place of the attributes that refer to it."""
    kept = []
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            kept.append(attribute)
        elif attribute.ref_attr_name in given:
            twin = type(attribute)()
            twin.CopyFrom(given[attribute.ref_attr_name])
            twin.name = attribute.name
            kept.append(twin)
    del node.attribute[:]
    node.attribute.extend(kept)
