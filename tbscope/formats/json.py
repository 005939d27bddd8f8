"""Graphs as JSON: a lossless text form, which reads back as an equal graph."""

import json

from tbscope.errors import ArgumentError
from tbscope.formats.checked_fields import Json
from tbscope.formats.plain_data import FORMAT, decode_graph, encode_graph
from tbscope.ir.graph import Graph, require_graph
from tbscope.messages import error_text

_LOOKED_AT = 256


def graph_to_json(graph: Graph) -> str:
    """Return a graph as JSON, one table a line; equal graphs have equal texts.

    Args:
        graph: Any graph; it is not changed.
    Returns:
        ASCII text in the format of docs/forms.md.
    Raises:
        ArgumentError: The argument is not a graph.
    """
    require_graph(graph, "graph_to_json")
    lines = [f'"{name}":{_text(table)}' for name, table in encode_graph(graph).items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def compact_json(graph: Graph) -> bytes:
    """Return the JSON of a graph, whose type is not checked, on one line."""
    return _text(encode_graph(graph)).encode("ascii")


def _text(data: Json) -> str:
    # `default` converts integers of other libraries. Cycles need no check, since `encode_graph`
    # does not return for cyclic data.
    return json.dumps(data, separators=(",", ":"), default=int, check_circular=False)


def graph_from_json(text: str | bytes) -> Graph:
    """Return the graph that a JSON text describes.

    Raises:
        ArgumentError: The text is not JSON, or describes no graph, or a graph of a later version.
    """
    try:
        data = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise _refused(f"{error.msg}, in line {error.lineno}, column {error.colno}") from error
    except ValueError as error:
        raise _refused(error_text(error)) from error
    except RecursionError as error:
        raise _refused("its lists are nested too deep") from error
    return decode_graph(data)


def is_json(start: bytes) -> bool:
    """Whether a file contains a graph as JSON, from its first bytes."""
    start = start[:_LOOKED_AT].lstrip()
    return start.startswith(b"{") and f'"{FORMAT}"'.encode() in start


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _refused(why: str) -> ArgumentError:
    return ArgumentError(
        "this is no JSON", why=why, fix="graph.save('graph.json') writes a graph as JSON"
    )
