"""Stats: times and sizes of drawn nodes as TensorFlow's RunMetadata, by which the page colours.

The page computes the time of a box as the span from its first start to its last end
(tensorboard/plugins/graph/tf_graph_common/graph.ts and common.ts, `NodeStats.combine`). So
the times are laid end to end on a made-up clock, with the nodes of each box next to each other:
then the span of each box contains its own nodes alone, and its time is the sum of theirs.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tensorboard.compat.proto.config_pb2 import RunMetadata

from tbscope.graphdef.attr_bytes import device_to_text
from tbscope.ir.graph import Shape

# Protobuf omits a start of 0, and the page then has no time for the node.
_START = 1


class Stat(NamedTuple):
    """The figures of one drawn node.

    Attributes:
        name: Its name in the GraphDef.
        device: Its device, as torch prints it (`cpu`, `cuda:0`).
        duration_us: Its time, in microseconds.
        size_bytes: Its memory.
        sizes: The shapes of its outputs, written if it has neither time nor memory: the page
            hatches a node without any stat, and hides its name
            (tensorboard/plugins/graph/tf_graph_common/util.ts, `hasDisplayableNodeStats`).
        stack: The stack of siblings that the page folds it into; empty for none.
    """

    name: str
    device: str
    duration_us: float
    size_bytes: int
    sizes: tuple[Shape | None, ...] = ()
    stack: str = ""


def run_metadata(stats: Iterable[Stat]) -> RunMetadata:
    """Return the RunMetadata with a graph's figures, without the graph itself.

    Args:
        stats: One for each node that has a figure; names are as in the GraphDef.
    Returns:
        A new message, by device. Starts and ends are whole microseconds: the running sum
        is rounded, so that a box of many short operations has the right time, even if
        each of them is shorter than a microsecond.

    Source: tensorboard/compat/proto/step_stats.proto
    """
    message = RunMetadata()
    devices = {}
    ordered = _by_boxes(list(stats))
    for stat, span in zip(ordered, _spans(ordered), strict=True):
        if stat.device not in devices:
            text = device_to_text(stat.device)
            devices[stat.device] = message.step_stats.dev_stats.add(device=text)
        entry = devices[stat.device].node_stats.add(node_name=stat.name)
        if span.end > span.start:
            entry.all_start_micros = _START + span.start
            entry.all_end_rel_micros = span.end - span.start
        if stat.size_bytes:
            entry.memory.add(total_bytes=stat.size_bytes)
        elif not entry.all_end_rel_micros:
            # The page shows NaN for a size of 0, and "scalar" for a shape without sizes.
            for shape in stat.sizes or ((),):
                message_shape = entry.output.add().tensor_description.shape
                # The page reads the shape of each output, so it must be set, even if empty.
                message_shape.SetInParent()
                for size in shape or ():
                    message_shape.dim.add(size=-1 if size is None else size)
    return message


class _Span(NamedTuple):
    """The start and end of a node or box on the made-up clock, in whole microseconds."""

    start: int
    end: int


def _spans(stats: Sequence[Stat]) -> list[_Span]:
    """Lay the times end to end, and make no span of a box or stack empty.

    The page hatches a box with neither time nor memory, and hides its name, whatever the stats of
    its nodes. So the last node of an empty box gets one microsecond, which overlaps the span of
    the enclosing box with time and therefore adds nothing to it.
    """
    spans: list[_Span] = []
    of_boxes: dict[str, _Span] = {}
    sized: set[str] = set()
    before = 0.0
    for stat in stats:
        start, before = round(before), before + stat.duration_us
        spans.append(_Span(start, round(before)))
        for box in _groups_around(stat):
            of_boxes[box] = _Span(of_boxes.get(box, spans[-1]).start, spans[-1].end)
            if stat.size_bytes:
                sized.add(box)
    whole = _Span(0, round(before))
    empty = {box for box, span in of_boxes.items() if span.start == span.end} - sized
    for index in range(len(stats) - 1, -1, -1) if empty else ():
        around = list(_groups_around(stats[index]))
        if empty.isdisjoint(around):
            continue
        empty.difference_update(around)
        timed = [span for span in map(of_boxes.__getitem__, around) if span.start < span.end]
        # The innermost box with time has a microsecond before or after this moment.
        outer, at = (timed or [whole])[-1], spans[index].start
        start = at - 1 if at > outer.start else at
        spans[index] = _Span(start, start + 1)
    return spans


def _by_boxes(stats: list[Stat]) -> list[Stat]:
    """Sort the stats so that those of each box are adjacent, on every level."""
    boxes = {box for stat in stats for box in _boxes_around(stat.name)}
    places: dict[str, int] = {}

    def key(stat: Stat) -> list[int]:
        # The page moves a node that has the name of a box into that box.
        path = f"{stat.name}/" if f"{stat.name}/" in boxes else stat.name
        steps = (*_boxes_around(path), path)
        return [places.setdefault(step, len(places)) for step in steps]

    return sorted(stats, key=key)


def _groups_around(stat: Stat) -> Iterator[str]:
    """Yield the enclosing boxes of a node, outermost first, then the stack that contains it."""
    yield from _boxes_around(stat.name)
    if stat.stack:
        yield stat.stack


def _boxes_around(name: str) -> Iterator[str]:
    """Yield the names of the enclosing boxes of a node, outermost first, each with a final `/`."""
    end = name.find("/")
    while end >= 0:
        yield name[: end + 1]
        end = name.find("/", end + 1)
