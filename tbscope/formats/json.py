"""Graphs as JSON: a text that keeps all that a graph holds, and reads back to an equal graph."""

import json
from typing import Any

from tbscope.errors import ArgumentError
from tbscope.formats.plain_data import FORMAT, decode_graph, encode_graph
from tbscope.ir.graph import Graph, require_graph
from tbscope.messages import error_text

__all__ = ["compact_json", "graph_from_json", "graph_to_json", "is_json"]

_LOOKED_AT = 256


def graph_to_json(graph: Graph) -> str:
    """Return a graph as JSON, one table a line; the same graph gives the same text.

    Args:
        graph: Any graph; it stays as it is.
    Returns:
        ASCII, as docs/formats.md describes it.
    Raises:
        ArgumentError: It is no graph.
    """
    require_graph(graph, "graph_to_json")
    lines = [f'"{name}":{_text(held)}' for name, held in encode_graph(graph).items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def compact_json(graph: Graph) -> bytes:
    """Return the JSON of what is known to be a graph, on one line."""
    return _text(encode_graph(graph)).encode("ascii")


def _text(data: Any) -> str:
    # A number may be of another library; what holds itself has not come so far.
    return json.dumps(data, separators=(",", ":"), default=int, check_circular=False)


def graph_from_json(text: str | bytes) -> Graph:
    """Return the graph that a text in JSON describes.

    Raises:
        ArgumentError: It is no JSON, describes no graph, or one of a later version.
    """
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


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _refused(why: str) -> ArgumentError:
    return ArgumentError(
        "this is no JSON", why=why, fix="graph.save('graph.json') writes a graph as JSON"
    )
