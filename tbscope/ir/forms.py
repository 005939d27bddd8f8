"""Forms: tells whether something is a graph at all, and whether what it lists is of the right kind.

Whoever takes a graph from a user asks here first, so that all that follows may rely on it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Call, Graph, Module, Node, Note, Output, Value
from tbscope.ir.nodes import Argument
from tbscope.ir.scopes import Scope
from tbscope.words import shown

__all__ = ["misshapen", "require_graph"]


def require_graph(thing: object, doing: str = "this") -> None:
    """Check that something is a graph.

    Args:
        thing: Anything.
        doing: What is to be done with it, for the message.
    Raises:
        ArgumentError: It is none, or it lists something that no graph lists.
    """
    if not isinstance(thing, Graph):
        raise ArgumentError(
            f"{doing} takes a graph, and was given {shown(thing)}",
            why="a graph is what tbscope.trace, tbscope.record and add_graph give",
            fix="graph = tbscope.trace(model, input)",
        )
    fault = next(misshapen(thing), "")
    if fault:
        raise ArgumentError(
            f"{doing} takes a graph, and {fault}",
            why="its lists hold nodes, calls, values and words, as tbscope.Graph tells",
            fix="take the graph as tbscope.trace or tbscope.record gave it",
        )


class _Field(NamedTuple):
    """A field of many things, and what it must be."""

    name: str
    kind: type | tuple[type, ...]
    of: type | None = None


_NONE = type(None)
_GRAPH = (
    _Field("name", str),
    _Field("nodes", list, Node),
    _Field("inputs", list, Node),
    _Field("outputs", list, Output),
    _Field("calls", list, Call),
    _Field("notes", list, Note),
    _Field("modules", list, Module),
    _Field("signatures", dict),
    _Field("uncounted", dict),
)
_NODE = (
    _Field("name", str),
    _Field("op", str),
    _Field("scope", (Scope, _NONE)),
    _Field("inputs", list, Value),
    _Field("outputs", list, Value),
    _Field("arguments", list, Argument),
    _Field("control_inputs", list, Node),
    _Field("kernels", list, str),
    _Field("attributes", dict),
)
_OUTPUT = (_Field("name", str), _Field("value", Value), _Field("control_inputs", tuple, Node))
_CALL = (
    _Field("scope", Scope),
    _Field("arguments", list, Argument),
    _Field("qualified_name", (str, _NONE)),
)


def misshapen(graph: Graph) -> Iterator[str]:
    """Yield a sentence for each field of a graph that holds what none can hold."""
    broken = False
    for fault in _faults([graph], _GRAPH, lambda _: "the graph"):
        broken = True
        yield fault
    if broken:
        return
    yield from _faults(graph.nodes, _NODE, lambda node: f"the node {shown(node.name)}")
    yield from _faults(graph.outputs, _OUTPUT, lambda output: f"the output {shown(output.name)}")
    yield from _faults(graph.calls, _CALL, lambda call: "a call")


def _faults(
    things: list[Any], fields: Iterable[_Field], say: Callable[[Any], str]
) -> Iterator[str]:
    for name, kind, of in fields:
        held = [getattr(thing, name) for thing in things]
        # All at once by their types; the culprit is looked for where there is one.
        if not all(issubclass(each, kind) for each in set(map(type, held))):
            for thing, value in zip(things, held, strict=True):
                if not isinstance(value, kind):
                    yield f"{name} of {say(thing)} is {shown(value)}"
        elif of is not None:
            kinds = {type(entry) for entries in held for entry in entries}
            if not all(issubclass(each, of) for each in kinds):
                for thing, entries in zip(things, held, strict=True):
                    for entry in entries:
                        if not isinstance(entry, of):
                            yield f"{name} of {say(thing)} holds {shown(entry)}"
