"""Conceptual graphs of Keras: layers as JSON, which TensorBoard draws as a GraphDef."""

import json

from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.errors import ArgumentError
from tbscope.messages import error_text


def graph_def_of_keras(data: bytes) -> tuple[GraphDef, str]:
    """Return the GraphDef that the page draws of a conceptual graph, and the name of the model.

    Raises:
        ArgumentError: The JSON is damaged.
    Source: tensorboard/plugins/graph/keras_util.py
    """
    from tensorboard.plugins.graph.keras_util import keras_model_to_graph_def

    try:
        model = json.loads(data)
        message = keras_model_to_graph_def(model)
    except Exception as error:  # The error depends on the part that the layers lack.
        raise ArgumentError(
            "a conceptual graph of Keras is damaged",
            why=error_text(error),
            fix="write it again: keras_model.to_json() makes it",
        ) from error
    name = model.get("config", {}).get("name", "")
    return message, name if isinstance(name, str) else ""
