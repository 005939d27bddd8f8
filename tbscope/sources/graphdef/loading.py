"""Loading of GraphDefs from messages and files, in binary form or as text, which may be damaged."""

from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.errors import ArgumentError
from tbscope.messages import error_text, shown
from tbscope.sources.file_kind import read_whole
from tbscope.sources.files import DAMAGED, kind_of_content, unreadable
from tbscope.utils.files import path_of

_DOING = "no GraphDef can be read"


def load_graph_def(source: object) -> GraphDef:
    """Return a GraphDef from a message, or from the path of a file.

    Raises:
        ArgumentError: The argument is neither; or the file cannot be read, is damaged, or contains
            no GraphDef.
    """
    if isinstance(source, GraphDef):
        return source
    if type(source).__name__ == "GraphDef" and hasattr(source, "SerializeToString"):
        # TensorFlow has a class of its own with the same fields.
        return graph_def_of_bytes(source.SerializeToString(), source)
    if path_of(source) is None:
        raise ArgumentError(
            f"{_DOING} from {shown(source)}",
            why="it takes a GraphDef, or the path of a .pb or .pbtxt file",
            fix="tbscope.from_graph_def('graph.pb')",
        )
    data = read_whole(source, _DOING)
    kind = kind_of_content(data[:512], len(data))
    if kind == "graph_def":
        return graph_def_of_bytes(data, source)
    if kind == "graph_def_text":
        return _of_text(data, source)
    words = {"events": "it is an event file", "json": "it is a graph as JSON"}
    raise unreadable(
        source,
        _DOING,
        words.get(str(kind), "it is empty" if not data else "its first bytes are those of none"),
        "tbscope.load(path) takes files of any kind"
        if kind
        else "give the path of a .pb or .pbtxt file",
    )


def graph_def_of_bytes(data: bytes, what: object) -> GraphDef:
    """Return the GraphDef in some bytes.

    Args:
        data: The bytes.
        what: The origin of the bytes, for the error.
    Raises:
        ArgumentError: The bytes are damaged.
    """
    try:
        return GraphDef.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise unreadable(what, _DOING, error_text(error), DAMAGED) from error


def _of_text(data: bytes, what: object) -> GraphDef:
    try:
        return text_format.Parse(data.decode("utf-8"), GraphDef())
    except Exception as error:  # text_format raises several classes of errors.
        why = error_text(error)
        if isinstance(error, UnicodeDecodeError):
            why = f"at byte {error.start:,} it is no text in UTF-8"
        elif isinstance(error, RecursionError):
            why = "its messages are nested too deep"
        raise unreadable(what, _DOING, why, DAMAGED) from error
