"""Overlays: the numbers by which a RunMetadata of a log colours a graph."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.plugins.graph import graph_util

from tbscope.graphdef.worth import worth_of_number
from tbscope.saving.picture import FIGURES, Picture

if TYPE_CHECKING:
    from tbscope.page.glyphs import Box, Item

__all__ = ["Numbers", "numbers_of"]

_UNIT = ".unit"
_MEASURED = ("duration_us", "allocated_bytes", "peak_bytes")
_TIME, _MEMORY = "duration_us", "allocated_bytes"


class Numbers(NamedTuple):
    """One figure of an overlay.

    Attributes:
        key: What cards call it.
        title: What it is beside others of its overlay; empty for the only one.
        by_name: The numbers by the names of nodes and boxes.
    """

    key: str
    title: str
    by_name: Mapping[str, float]


def numbers_of(data: bytes) -> list[Numbers]:
    """Return the figures of a RunMetadata: those that its own graph has on cards, or its stats.

    A drawing of tbscope has the very numbers on its cards, each beside its unit; its stats have
    them in the page's units, and a placeholder for nothing.

    Raises:
        DecodeError: The bytes are damaged.
    """
    metadata = RunMetadata.FromString(data)
    graphs = [one.pre_optimization_graph for one in metadata.function_graphs]
    message = graph_util.merge_graph_defs(graphs)
    names = {key.strip() for node in message.node for key in node.attr}
    keys = sorted(key.removesuffix(_UNIT) for key in names if key.endswith(_UNIT))
    keys = [key for key in keys if key in names] or [key for key in _MEASURED if key in names]
    found = _on_cards(Picture("", message.node), keys) if keys else _of_stats(metadata)
    return [
        Numbers(key, FIGURES.get(key, key) if len(found) > 1 else "", by_name)
        for key, by_name in found.items()
    ]


def _on_cards(picture: Picture, keys: list[str]) -> dict[str, dict[str, float]]:
    """Return the numbers on cards, but for those of circles: what reads them has these, too."""
    found: dict[str, dict[str, float]] = {}
    nodes = [item for item in picture.items if not item.embedded]
    glyphs: list[Box | Item] = [*picture.boxes, *nodes]
    for glyph in glyphs:
        for key in keys:
            number = worth_of_number(picture.fact(glyph, key))
            if number is not None:
                found.setdefault(key, {})[glyph.name] = number
    return found


def _of_stats(metadata: Any) -> dict[str, dict[str, float]]:
    """Return times and bytes by node, of several devices as TensorBoard's page joins them.

    Source: tensorboard/plugins/graph/tf_graph_common/graph.ts (`joinStatsInfoWithGraph`), and
    common.ts there (`NodeStats`)
    """
    spans: dict[str, tuple[int, int]] = {}
    sizes: dict[str, float] = {}
    for device in metadata.step_stats.dev_stats:
        for stats in device.node_stats:
            name, start = stats.node_name, stats.all_start_micros
            if stats.all_end_rel_micros > 0:
                first, last = spans.get(name, (start, start))
                spans[name] = min(first, start), max(last, start + stats.all_end_rel_micros)
            held = sum(one.total_bytes for one in stats.memory if one.total_bytes > 0)
            if held:
                sizes[name] = max(held, sizes.get(name, 0))
    times: dict[str, float] = {name: last - first for name, (first, last) in spans.items()}
    return {key: numbers for key, numbers in ((_TIME, times), (_MEMORY, sizes)) if numbers}
