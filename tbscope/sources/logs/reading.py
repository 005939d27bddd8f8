"""Graphs of logs: every graph of every run, tag and step, converted back to `Graph`."""

import re
from dataclasses import dataclass, field

from tbscope.errors import ArgumentError, NotFoundError
from tbscope.formats.compressed import graph_of_record
from tbscope.ir.graph import Graph, Measured
from tbscope.messages import did_you_mean, first_of, shown, tag_text
from tbscope.sources.files import unreadable
from tbscope.sources.graphdef.loading import graph_def_of_bytes
from tbscope.sources.graphdef.reading import graph_of_message
from tbscope.sources.logs.event_files import contents_of_file, log_files
from tbscope.sources.logs.events import LoggedContent
from tbscope.sources.logs.keras import graph_def_of_keras
from tbscope.utils.files import path_of
from tbscope.utils.warning import warn

__all__ = ["LoggedGraph", "graph_in_log", "logged_graph", "read_log"]

_MOST_LISTED = 8
_AT_STEP = re.compile(r"(.+)@(-?[0-9]{1,18})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LoggedGraph:
    """Graph of a log.

    Attributes:
        run: The run in TensorBoard's list: the directory relative to the log directory, "." for the
            log directory itself.
        tag: The tag, or None for the graph of the run, which the page calls "Default".
        step: The training step.
        graph: The graph.
        wall_time: The time of writing, in seconds since 1970.
        figures: The figures drawn on the graph, by the drawn names of the nodes: the times and
            bytes of a profile, or the numbers of an overlay, as bytes.
        file: The path of the event file.
    """

    run: str
    tag: str | None
    step: int
    graph: Graph
    wall_time: float = 0.0
    figures: dict[str, Measured] = field(default_factory=dict)
    file: str = ""

    def __repr__(self) -> str:
        tag = "the graph of the run" if self.tag is None else f"tag {self.tag!r}"
        return f"<LoggedGraph {self.run}, {tag}, step {self.step}: {self.graph!r}>"


def read_log(path: object) -> list[LoggedGraph]:
    """Return every graph in an event file, or in a directory and all below it.

    A graph that tbscope wrote is restored completely: nodes, calls, values, figures and notes. A
    graph of another writer has the contents of its GraphDef (see `from_graph_def`), with the times
    and the memory that were written for it; a graph of Keras has the layers.

    >>> import torch, tbscope
    >>> with tbscope.SummaryWriter("runs/linear") as writer:
    ...     graph = writer.add_graph(torch.nn.Linear(3, 5), torch.rand(1, 3), tag="small")
    >>> [(logged.run, logged.tag, logged.graph) for logged in tbscope.read_log("runs")]
    [('linear', 'small', <Graph Linear: 4 nodes, 1 calls>)]

    Args:
        path: The path of an event file or of a log directory, also on another machine in
            TensorBoard's notation (`s3://…`).
    Returns:
        The graphs run by run and file by file, in the order in which they were written. Damaged
        content of a directory is left out with a warning: of a damaged file, all after the damage.
    Raises:
        ArgumentError: There is no such file, no event file, or the file is damaged; the message
            contains the offset. For a directory: no graph can be read, as all are damaged.
    """
    files = log_files(path, fix="tbscope.read_log('runs/x')")
    graphs, damaged = _read(files)
    if damaged:
        if not graphs or files == [(".", path_of(path))]:
            raise damaged[0]
        warn(_left_out(path, damaged))
    return graphs


def _left_out(path: object, damaged: list[ArgumentError]) -> str:
    """Return the text of the warning about the damaged content of a directory."""
    lines = [f"{error.what}: {error.why}" for error in damaged[:_MOST_LISTED]]
    if len(damaged) > _MOST_LISTED:
        lines.append(f"and {len(damaged) - _MOST_LISTED:,} more")
    listed = "\n  ".join(lines)
    return f"the log {shown(path_of(path))} is read without what is damaged in it\n  {listed}"


def graph_in_log(path: object) -> Graph:
    """Return the graph of a log for a caller that names no tag, at its latest step.

    The graph is the only one of the log. In a log of one run with several graphs it is the graph of
    the run, which the page opens first; a warning lists the other graphs.

    Raises:
        ArgumentError: The log cannot be read, contains no graph, or contains several graphs and
            none of them is the default.
    """
    latest: dict[tuple[str, str | None], LoggedGraph] = {}
    for logged in read_log(path):
        earlier = latest.get((logged.run, logged.tag))
        if earlier is None or earlier.step <= logged.step:
            latest[logged.run, logged.tag] = logged
    if len(latest) == 1:
        return next(iter(latest.values())).graph
    if not latest:
        raise unreadable(path, "no graph can be read", "the log has none", "tbscope.read_log")
    of_run = next((logged for (_, tag), logged in latest.items() if tag is None), None)
    if of_run is not None and len({run for run, _ in latest}) == 1:
        others = [shown(tag) for _, tag in latest if tag is not None]
        warn(
            f"{shown(path_of(path))}: this is the graph of the run; {len(others)} beside it: "
            f"{first_of(others, _MOST_LISTED)}"
        )
        return of_run.graph
    names = [f"{run}: {'Default' if tag is None else shown(tag)}" for run, tag in latest]
    raise unreadable(
        path,
        "no one graph can be read",
        f"it has {len(latest)} of them: {first_of(names, _MOST_LISTED)}",
        "tbscope ls lists them; name one as LOGDIR:TAG, with the directory of its run",
    )


def logged_graph(path: str, tag: str) -> Graph:
    """Return the graph of a log with a tag, at a step or the latest.

    Args:
        path: An event file, or a log directory of one run.
        tag: A tag, or a tag and a step: `large`, `large@7`, `Default`. A tag whose own name is
            `large@7` is found only if the tag `large` has no step 7, so each graph has a name
            (the other one is `large@7@STEP`).
    Raises:
        ArgumentError: The path is no log, or several of its runs have the graph.
        NotFoundError: The log does not contain the graph.
    """
    logged = read_log(path)
    at_step = _AT_STEP.fullmatch(tag)
    name, step = (at_step[1], int(at_step[2])) if at_step else (None, 0)
    same = [entry for entry in logged if tag_text(entry.tag) == name]
    graphs = [entry for entry in same if entry.step == step] or [
        entry for entry in logged if tag_text(entry.tag) == tag
    ]
    runs = list(dict.fromkeys(entry.run for entry in graphs))
    if len(runs) > 1:
        raise ArgumentError(
            f"several runs of {shown(path)} have a graph {shown(tag)}",
            why=f"{first_of(runs, _MOST_LISTED)} have one",
            fix=f"give the directory of one: {path.rstrip('/')}/{runs[-1]}:{tag}",
        )
    if graphs:
        return max(enumerate(graphs), key=lambda pair: (pair[1].step, pair[0]))[1].graph
    if same:
        steps = dict.fromkeys(str(entry.step) for entry in same)
        raise NotFoundError(
            f"the tag {shown(name)} has no graph of step {step} in {shown(path)}",
            why=f"its steps are {first_of(steps, _MOST_LISTED)}",
            fix=f"tbscope ls {path} lists them",
        )
    tags = dict.fromkeys(tag_text(entry.tag) for entry in logged)
    raise NotFoundError(
        f"no graph is tagged {shown(tag)} in {shown(path)}",
        fix=did_you_mean(tag, tags, f"tbscope ls {path} lists all"),
    )


def _read(files: list[tuple[str, str]]) -> tuple[list[LoggedGraph], list[ArgumentError]]:
    """Return the graphs of files, and the error of each file and graph that cannot be read.

    Args:
        files: The runs and the paths.
    """
    damaged: list[ArgumentError] = []
    contents: list[tuple[str, str, LoggedContent]] = []
    for run, path in files:
        try:
            for content in contents_of_file(path):
                contents.append((run, path, content))
        except ArgumentError as error:
            damaged.append(error)
    graphs: list[LoggedGraph] = []
    for run, path, content in contents:
        if content.kind != "figures":
            figures = _figures_of(run, content, contents)
            try:
                graph = _graph_of(content, path, figures)
            except ArgumentError as error:
                damaged.append(error)
                continue
            graphs.append(
                LoggedGraph(run, content.tag, content.step, graph, content.wall_time, figures, path)
            )
    return graphs, damaged


def _figures_of(
    run: str, content: LoggedContent, contents: list[tuple[str, str, LoggedContent]]
) -> dict[str, Measured]:
    """Return the figures of a graph; those for the graph of a run may be in separate events."""
    of_graph = [content]
    if content.tag is None:
        of_graph += [
            logged
            for logged_run, _, logged in contents
            if logged.kind == "figures" and logged_run == run
        ]
    figures: dict[str, Measured] = {}
    for logged in of_graph:
        for device in logged.figures.step_stats.dev_stats if logged.figures else ():
            for stats in device.node_stats:
                duration_us = float(stats.all_end_rel_micros) or stats.all_end_rel_nanos / 1000
                memory_bytes = sum(memory.total_bytes for memory in stats.memory)
                figures[stats.node_name] = Measured(duration_us or None, memory_bytes or None)
    return figures


def _graph_of(content: LoggedContent, path: str, figures: dict[str, Measured]) -> Graph:
    tag = "the graph of the run" if content.tag is None else f"the tag {shown(content.tag)}"
    try:
        if content.record:
            return graph_of_record(content.record)
        if content.kind == "keras":
            return graph_of_message(*graph_def_of_keras(content.data))
        return graph_of_message(graph_def_of_bytes(content.data, path), "", figures)
    except ArgumentError as error:
        raise ArgumentError(
            f"{tag}, step {content.step}, cannot be read from {shown(path)}",
            why=f"{error.what}: {error.why}",
            fix=error.fix,
        ) from error
