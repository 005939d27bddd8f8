"""Event files and GraphDefs made by hand, byte by byte where that matters."""

import io
import struct

import google_crc32c
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter


def record(data: bytes) -> bytes:
    """Give one record, as TensorBoard's own writer makes it."""
    file = io.BytesIO()
    RecordWriter(file).write(data)
    return file.getvalue()


def log(path, *events) -> str:
    """Write an event file of these events, which may be bytes; give its path."""
    version = Event(wall_time=1, file_version="brain.Event:2")
    datas = [one if isinstance(one, bytes) else one.SerializeToString() for one in events]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(record, [version.SerializeToString(), *datas])))
    return str(path)


def head(length: int) -> bytes:
    """Give the head of a record that claims a length, with the right checksum."""
    data = struct.pack("<Q", length)
    crc = google_crc32c.value(data)
    return data + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def graph_def(*nodes: str, **attributes) -> GraphDef:
    """Give a GraphDef of nodes that are written `name: op(input, ^input)`."""
    message = GraphDef()
    for text in nodes:
        name, _, rest = text.partition(": ")
        op, _, inputs = rest.rstrip(")").partition("(")
        node = message.node.add(name=name, op=op)
        node.input.extend(filter(None, inputs.split(", ")))
        for key, sizes in attributes.get("shapes", {}).items():
            if key == name:
                shape = node.attr["_output_shapes"].list.shape.add()
                for size in sizes:
                    shape.dim.add(size=size)
    return message


def tagged(tag: str, plugin: str, data: bytes, step: int = 0) -> Event:
    """Give the event of a summary under a plugin."""
    event = Event(wall_time=2, step=step)
    event.summary.value.add(
        tag=tag,
        metadata=SummaryMetadata(
            plugin_data=SummaryMetadata.PluginData(plugin_name=plugin, content=b"1")
        ),
        tensor=TensorProto(dtype=DT_STRING, string_val=[data]),
    )
    return event


def metadata(message: GraphDef | None = None, **times_us: int) -> bytes:
    """Give a RunMetadata with a graph and with the times of nodes, serialised."""
    made = RunMetadata()
    if message is not None:
        made.function_graphs.add(pre_optimization_graph=message)
    for name, time_us in times_us.items():
        if not made.step_stats.dev_stats:
            made.step_stats.dev_stats.add(device="/device:CPU:0")
        stats = made.step_stats.dev_stats[0].node_stats.add(node_name=name)
        stats.all_end_rel_micros = time_us
    return made.SerializeToString()
