"""Model Explorer: the JSON that Google's viewer of models reads.

Its layers are our boxes: a node's namespace is the path of the box that it stands in.

Source: https://github.com/google-ai-edge/model-explorer, `graph_builder.py` (what is in a graph);
its page takes an object with a `label` and `graphs`.
"""

import json
from typing import Any

from tbscope.page.glyphs import Item
from tbscope.saving.picture import Picture, Tensor

__all__ = ["explorer_of"]


def explorer_of(picture: Picture) -> str:
    """Return a picture as Model Explorer's JSON, with all that the cards tell."""
    graph: dict[str, Any] = {
        "id": picture.title or "graph",
        "nodes": [_node(picture, item) for item in picture.items],
        # By the path of the layer; that of the graph is empty.
        "groupNodeAttributes": {
            box.name: picture.facts(box)
            for box in (picture.root, *picture.boxes)
            if picture.facts(box)
        },
    }
    whole = {"label": picture.title or "graph", "graphs": [graph]}
    return json.dumps(whole, indent=1, ensure_ascii=True) + "\n"


def _node(picture: Picture, item: Item) -> dict[str, Any]:
    reads, second = picture.reads(item), picture.second_line(item)
    facts = {**picture.facts(item), "device": picture.device(item)}
    waits = [read.source.name for read in reads if read.waits]
    node: dict[str, Any] = {
        "id": item.name,
        "label": f"{item.label} ({second})" if second else item.label,
        "namespace": item.box.name,
        "attrs": [{"key": key, "value": value} for key, value in facts.items()],
        "incomingEdges": [
            {
                "sourceNodeId": read.source.name,
                "sourceNodeOutputId": str(read.output),
                "targetNodeInputId": str(at),
            }
            for at, read in enumerate(reads)
        ],
        "outputsMetadata": [
            {"id": str(at), "attrs": _tensor(tensor)}
            for at, tensor in enumerate(picture.outputs(item))
        ],
        "inputsMetadata": [
            {"id": str(at), "attrs": [{"key": "__tensor_tag", "value": read.source.name}]}
            for at, read in enumerate(reads)
            if not read.waits
        ],
    }
    if waits:
        links = {"type": "node_ids", "nodeIds": waits}
        node["attrs"].append({"key": "waits for", "value": links})
    return node


def _tensor(tensor: Tensor) -> list[dict[str, str]]:
    """Tell of a tensor as Model Explorer's own reader of torch does: `float32[2, 8]`."""
    sizes = "?" if tensor.sizes is None else tensor.size_text.replace("×", ", ")
    sizes = "" if tensor.sizes == () else sizes
    return [{"key": "tensor_shape", "value": f"{tensor.dtype}[{sizes}]"}]
