"""Stats: times and sizes of drawn nodes as TensorFlow's RunMetadata, from which the page colours.

The page takes as the time of a box the span from its first start to its last end
(tensorboard/plugins/graph/tf_graph_common/graph.ts and common.ts, `NodeStats.combine`). So
the times are laid end to end, on a clock of their own, in the order in which boxes hold
what stands in them: then each box spans just what is inside, and its time is their sum.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tensorboard.compat.proto.config_pb2 import RunMetadata

from tbscope.graphdef.attr_bytes import device_to_text
from tbscope.ir.graph import Shape

__all__ = ["Stat", "run_metadata"]

# A start at 0 is not printed, and kills the node's time.
_START = 1


class Stat(NamedTuple):
    """The figures of one drawn node.

    Attributes:
        name: Its name in the GraphDef.
        device: Where it is, as torch prints it (`cpu`, `cuda:0`).
        duration_us: Its time, in microseconds.
        size_bytes: Its memory.
        sizes: The shapes of what it gives, told where it has neither time nor memory: the page
            hatches a node of which nothing is told, and hides its name
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
        is rounded, so that a box of many short operations has the right time, even where
        each of them is shorter than the page can tell.

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
            # Of a size of 0 the page makes NaN; without a size it says "scalar".
            for shape in stat.sizes or ((),):
                told = entry.output.add().tensor_description.shape
                # The page reads the shape of each one, also where it has no dimensions.
                told.SetInParent()
                for size in shape or ():
                    told.dim.add(size=-1 if size is None else size)
    return message


class _Span(NamedTuple):
    """From when to when something runs, in whole microseconds."""

    start: int
    end: int


def _spans(stats: Sequence[Stat]) -> list[_Span]:
    """Lay the times end to end, and let no box or stack be empty.

    One with neither time nor memory the page hatches, and hides its name, whatever its nodes
    tell. So one of them, the last, has a microsecond which the box around has already counted.
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
    for place in range(len(stats) - 1, -1, -1) if empty else ():
        around = list(_groups_around(stats[place]))
        if empty.isdisjoint(around):
            continue
        empty.difference_update(around)
        timed = [span for span in map(of_boxes.__getitem__, around) if span.start < span.end]
        # The innermost box with time has some before or after this moment.
        outer, at = (timed or [whole])[-1], spans[place].start
        start = at - 1 if at > outer.start else at
        spans[place] = _Span(start, start + 1)
    return spans


def _by_boxes(stats: list[Stat]) -> list[Stat]:
    """Order the stats so that those of each box follow one another, on every level."""
    boxes = {box for stat in stats for box in _boxes_around(stat.name)}
    places: dict[str, int] = {}

    def key(stat: Stat) -> list[int]:
        # The page moves a node that is named like a box into it.
        path = f"{stat.name}/" if f"{stat.name}/" in boxes else stat.name
        steps = (*_boxes_around(path), path)
        return [places.setdefault(step, len(places)) for step in steps]

    return sorted(stats, key=key)


def _groups_around(stat: Stat) -> Iterator[str]:
    """Yield the boxes around a node, outermost first, and the stack that it is folded into."""
    yield from _boxes_around(stat.name)
    if stat.stack:
        yield stat.stack


def _boxes_around(name: str) -> Iterator[str]:
    """Yield the names of the boxes around a node, outermost first, each with `/` after it."""
    end = name.find("/")
    while end >= 0:
        yield name[: end + 1]
        end = name.find("/", end + 1)
