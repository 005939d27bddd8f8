"""Sharing: which operations read parameters that others read, or other modules hold, too."""

from collections import defaultdict

from tbscope.ir.graph import Graph, Node
from tbscope.ir.regions import OPERATIONS, STATE

__all__ = ["sharing_labels"]


def sharing_labels(graph: Graph) -> dict[Node, str]:
    """Return for each node that shares parameters or buffers with others who holds these.

    Tied parameters have several holders (`lm_head, wte`); those of a module that is called
    more than once, one. What it holds for itself and is read in one call has no label.

    Args:
        graph: The graph, as it was recorded or as it is drawn.
    """
    holders = _holders(graph)
    readers: dict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.kind in OPERATIONS:
            for source in dict.fromkeys(value.producer for value in node.inputs):
                if source.kind in STATE:
                    readers[source].append(node)
    labels: dict[Node, str] = {}
    for held, reading in readers.items():
        names = holders.get(held.name, [_holder(held.name)])
        if len(names) > 1 or len({node.scope for node in reading}) > 1:
            label = ", ".join(name or graph.name for name in names)
            for node in (held, *reading):
                labels.setdefault(node, label)
    return labels


def _holders(graph: Graph) -> dict[str, list[str]]:
    """Return for each parameter or buffer, by its names, the modules that hold it."""
    names: dict[int, list[str]] = defaultdict(list)
    for module in graph.modules:
        for parameter in module.parameters:
            # Below 0 stands what nobody knows the tensor of.
            if parameter.number >= 0:
                names[parameter.number].append(
                    f"{module.name}.{parameter.name}" if module.name else parameter.name
                )
    return {
        name: list(dict.fromkeys(map(_holder, tied))) for tied in names.values() for name in tied
    }


def _holder(name: str) -> str:
    return name.rpartition(".")[0]
