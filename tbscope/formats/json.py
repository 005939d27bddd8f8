"""Graphs as JSON: a text that keeps all that a graph holds, and reads back to an equal graph."""

import json

from tbscope.errors import ArgumentError
from tbscope.formats.decode import decode_graph
from tbscope.formats.encode import FORMAT, encode_graph
from tbscope.ir.graph import Graph, require_graph
from tbscope.words import error_text

__all__ = ["compact_json", "graph_from_json", "graph_to_json", "is_json"]

_LOOKED_AT = 256
# A graph has some 25 characters for each list or object that it opens.
_LONG, _LEAST_TEXT = 10_000_000, 6


def graph_to_json(graph: Graph) -> str:
    """Return a graph as JSON, one entry of each list a line; the same graph gives the same text.

    Args:
        graph: Any graph; it stays as it is.
    Returns:
        ASCII, as docs/formats.md describes it.
    Raises:
        ArgumentError: It is no graph.
    """
    require_graph(graph, "graph_to_json")
    return _joined(encode_graph(graph), "\n") + "\n"


def compact_json(graph: Graph) -> bytes:
    """Return what `graph_to_json` tells, on one line, of what is known to be a graph."""
    return _joined(encode_graph(graph), "").encode("ascii")


def _joined(entries: dict[str, str | list[str]], end: str) -> str:
    """Join the entries of an object, with an end after each line."""
    between = f",{end}"
    lines = [
        f'"{key}":{held}' if isinstance(held, str) else f'"{key}":[{end}{between.join(held)}{end}]'
        for key, held in entries.items()
    ]
    return f"{{{end}{between.join(lines)}{end}}}"


def graph_from_json(text: str | bytes) -> Graph:
    """Return the graph that a text in JSON describes.

    Raises:
        ArgumentError: It is no JSON, describes no graph, or one of a later version.
    """
    _check_lists(text)
    try:
        data = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise _refused(f"{error.msg}, in line {error.lineno}, column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        reason = "its lists stand in each other too deep"
        raise _refused(error_text(error) if isinstance(error, ValueError) else reason) from error
    return decode_graph(data)


def is_json(start: bytes) -> bool:
    """Tell by its first bytes whether a file holds a graph as JSON."""
    start = start[:_LOOKED_AT].lstrip()
    return start.startswith(b"{") and f'"{FORMAT}"'.encode() in start


def _check_lists(text: str | bytes) -> None:
    """Refuse a long text of hardly more than brackets, which takes many times its size to read."""
    if len(text) > _LONG:
        opened = text.count("[") if isinstance(text, str) else text.count(b"[")
        opened += text.count("{") if isinstance(text, str) else text.count(b"{")
        if opened * _LEAST_TEXT > len(text):
            raise _refused(f"it opens {opened:,} lists and objects in {len(text):,} characters")


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _refused(why: str) -> ArgumentError:
    return ArgumentError(
        "this is no JSON", why=why, fix="graph.save('graph.json') writes a graph as JSON"
    )
