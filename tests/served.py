"""What TensorBoard's server tells of the graphs in a log directory, over HTTP."""

import gzip
import json
import urllib.request
from typing import Any
from urllib.parse import urlencode

from browser import TensorBoard
from google.protobuf import text_format
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.writing.event_sinks import listed_tag


def ask(server: TensorBoard, path: str, *, plugin: str = "graphs", **query: str) -> bytes:
    """Give what a plugin answers, that of the graphs unless another is named."""
    url = f"{server.url}/data/plugin/{plugin}/{path}?{urlencode(query)}"
    with urllib.request.urlopen(url) as answer:
        body: bytes = answer.read()
        return gzip.decompress(body) if answer.headers["Content-Encoding"] == "gzip" else body


def info(server: TensorBoard) -> dict[str, Any]:
    """Give what the server lists, by run, with the tags as the page shows them."""
    found: dict[str, Any] = json.loads(ask(server, "info"))
    for run in found.values():
        run["tags"] = {
            tag.rstrip(" "): {**facts, "tag": facts["tag"].rstrip(" ")}
            for tag, facts in run["tags"].items()
        }
    return found


def graph_of(server: TensorBoard, run: str = ".", tag: str | None = None) -> GraphDef:
    """Give the graph of a tag; that of the run for None."""
    query = {"run": run, **({} if tag is None else {"tag": listed_tag(tag)})}
    return text_format.Parse(ask(server, "graph", **query), GraphDef())


def names(server: TensorBoard, run: str = ".", tag: str | None = None) -> list[str]:
    """Give the names of the nodes in a graph."""
    return [node.name for node in graph_of(server, run, tag).node]


def figures_of(server: TensorBoard, run: str, tag: str) -> RunMetadata:
    """Give the figures of a tag."""
    return text_format.Parse(
        ask(server, "run_metadata", run=run, tag=listed_tag(tag)), RunMetadata()
    )


def scalars_of(server: TensorBoard, run: str, tag: str) -> list[float]:
    """Give the values in the chart of a scalar."""
    answer = json.loads(ask(server, "scalars", plugin="scalars", run=run, tag=tag))
    return [value for _, _, value in answer]
