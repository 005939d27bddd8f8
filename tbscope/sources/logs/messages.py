"""Messages: what event files and GraphDef files hold as it stands there, before it is a graph."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.errors import ArgumentError
from tbscope.sources.graphdef.loading import graph_def_of_bytes
from tbscope.sources.logs.event_files import found_in_file, log_files
from tbscope.sources.logs.events import Found
from tbscope.sources.logs.keras import graph_def_of_keras

__all__ = ["LoggedMessage", "messages_in_log"]


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """One graph of a log as it was written.

    Attributes:
        run: The run, as TensorBoard lists it: the directory, from that of the log; "." for it.
        file: The path of the event file.
        found: What the event holds.
    """

    run: str
    file: str
    found: Found

    @property
    def size_bytes(self) -> int:
        """The bytes of the GraphDef, or of Keras's JSON."""
        return len(self.found.data)

    @property
    def is_whole(self) -> bool:
        """Whether all that tbscope knew of the graph stands beside the drawing."""
        return bool(self.found.record)

    def count_nodes(self) -> int:
        """Return how many nodes are drawn.

        Raises:
            ArgumentError: The message is damaged.
        """
        return len(self.graph_def().node)

    def graph_def(self) -> GraphDef:
        """Return the GraphDef that the page draws.

        Raises:
            ArgumentError: The message is damaged.
        """
        if self.found.kind == "keras":
            return graph_def_of_keras(self.found.data)[0]
        return graph_def_of_bytes(self.found.data, self.file)


def messages_in_log(path: Any) -> Iterator[LoggedMessage | ArgumentError]:
    """Yield every graph in an event file, or in a directory and all below it, as it was written.

    Args:
        path: As for `read_log`.
    Returns:
        The graphs, run by run, file by file; and for each file that is damaged the error, behind
        what can be read of it.
    Raises:
        ArgumentError: There is no such file, or no event file.
    """
    for run, file in log_files(path, fix="tbscope ls runs/x"):
        try:
            for found in found_in_file(file):
                if found.kind != "figures":
                    yield LoggedMessage(run, file, found)
        except ArgumentError as error:
            yield error
