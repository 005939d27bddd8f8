"""Conceptual graphs of Keras: layers as JSON, which TensorBoard draws as a GraphDef."""

import json
from collections.abc import Iterator
from typing import Any

from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.errors import ArgumentError
from tbscope.words import error_text

__all__ = ["graph_def_of_keras"]


def graph_def_of_keras(data: bytes) -> tuple[GraphDef, str]:
    """Return what the page draws of a conceptual graph, and the name of the model.

    Raises:
        ArgumentError: It is damaged.
    Source: tensorboard/plugins/graph/keras_util.py
    """
    from tensorboard.plugins.graph.keras_util import keras_model_to_graph_def

    try:
        model = json.loads(data)
        message = keras_model_to_graph_def(_usual(model))
    except Exception as error:  # Whatever the layers lack, its reader raises something of its own.
        raise ArgumentError(
            "a conceptual graph of Keras is damaged",
            why=error_text(error),
            fix="write it anew: keras_model.to_json() makes it",
        ) from error
    name = model.get("config", {}).get("name", "")
    return message, name if isinstance(name, str) else ""


_TENSOR = "__keras_tensor__"


def _usual(layer: Any) -> Any:
    """Return a layer with what it reads and gives told as TensorBoard's reader takes it.

    That takes the form of Keras 3 alone, and of it lists of positional arguments. Others are nests
    of them, arguments by name, and those of Keras 2: `[["dense", 0, 0, {}]]` for each call.
    """
    config = layer["config"]
    if not isinstance(config, dict):
        return layer
    changes: dict[str, Any] = {}
    if config.get("input_layers"):
        # Here that takes names, and mends no nest.
        changes["input_layers"] = [name for name, *_ in _ends(config["input_layers"])]
    if config.get("output_layers"):
        changes["output_layers"] = list(_ends(config["output_layers"]))
    if isinstance(config.get("layers"), list):
        changes["layers"] = [_usual(inner) for inner in config["layers"]]
    layer = {**layer, "config": {**config, **changes}}
    if isinstance(layer.get("inbound_nodes"), list):
        calls = [list(_read(call)) for call in layer["inbound_nodes"]]
        layer["inbound_nodes"] = [{"args": [[_tensor(one) for one in call]]} for call in calls]
    return layer


def _ends(nest: Any) -> Iterator[list[Any]]:
    """Yield what a model is given or gives: `["dense", 0, 0]`, in lists and dicts."""
    if isinstance(nest, list) and nest and isinstance(nest[0], str):
        yield nest
    elif isinstance(nest, list | dict):
        for entry in nest.values() if isinstance(nest, dict) else nest:
            yield from _ends(entry)


def _read(nest: Any) -> Iterator[list[Any]]:
    """Yield what a call reads: the name of a layer, which of its calls, and which result."""
    if isinstance(nest, dict):
        history = nest["config"].get("keras_history") if nest.get("class_name") == _TENSOR else None
        if history is not None:
            yield history[:3]
        else:
            for entry in nest.values():
                yield from _read(entry)
    elif isinstance(nest, list) and [type(entry) for entry in nest[:3]] == [str, int, int]:
        yield nest[:3]
        # Of Keras 2: what else it is given, by name.
        yield from _read(nest[3:])
    elif isinstance(nest, list):
        for entry in nest:
            yield from _read(entry)


def _tensor(history: list[Any]) -> dict[str, Any]:
    return {"class_name": _TENSOR, "config": {"keras_history": history}}
