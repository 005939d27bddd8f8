"""Messages of event files: graphs as they were written, before their conversion to `Graph`."""

from collections.abc import Iterator
from dataclasses import dataclass

from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.errors import ArgumentError
from tbscope.messages import tag_text
from tbscope.sources.graphdef.loading import graph_def_of_bytes
from tbscope.sources.logs.event_files import contents_of_file, log_files
from tbscope.sources.logs.events import LoggedContent
from tbscope.sources.logs.keras import graph_def_of_keras


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """Graph of a log as it was written.

    Attributes:
        run: The run in TensorBoard's list: the directory relative to the log directory, "." for the
            log directory itself.
        file: The path of the event file.
        content: The graph in the event.
    """

    run: str
    file: str
    content: LoggedContent

    def target(self, path: str) -> str:
        """Return the graph as a target of commands, from the path of the log: `runs/net:large@7`.

        >>> from tbscope.sources.logs.events import LoggedContent
        >>> LoggedMessage(".", "", LoggedContent("graph_def", None)).target("runs/")
        'runs:Default@0'
        """
        run = path.rstrip("/") + f"/{self.run}" * (self.run != ".")
        return f"{run}:{tag_text(self.content.tag)}@{self.content.step}"

    def graph_def(self) -> GraphDef:
        """Return the GraphDef that the page draws.

        Raises:
            ArgumentError: The message is damaged.
        """
        if self.content.kind == "keras":
            return graph_def_of_keras(self.content.data)[0]
        return graph_def_of_bytes(self.content.data, self.file)


def messages_in_log(path: object) -> Iterator[LoggedMessage | ArgumentError]:
    """Yield every graph in an event file, or in a directory and all below it, as it was written.

    Args:
        path: The path, as for `read_log`.
    Returns:
        The graphs, run by run and file by file. The error of a damaged file follows the graphs that
        can be read of it.
    Raises:
        ArgumentError: There is no such file, or no event file.
    """
    for run, file in log_files(path, fix="tbscope ls runs/x"):
        try:
            for content in contents_of_file(file):
                if content.kind != "figures":
                    yield LoggedMessage(run, file, content)
        except ArgumentError as error:
            yield error
