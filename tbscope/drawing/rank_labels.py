"""Labels of ranks: by which processes of a distributed run a node was run, and in which stage."""

from itertools import chain

from tbscope.ir.facts import ranks_text, split_device
from tbscope.ir.graph import Graph, Node
from tbscope.ir.regions import Nearest

__all__ = ["rank_labels"]


def rank_labels(graph: Graph, *, by_stage: bool) -> dict[Node, str]:
    """Return the ranks of each node in words, or the stage of a pipeline that they run.

    Args:
        graph: The graph as it is drawn.
        by_stage: Whether the stage is asked for, which not all nodes have.
    """
    stages = {part.scope: part.stage for part in graph.parts}
    ranks_in: dict[str, list[int]] = {}
    for part in graph.parts:
        ranks_in.setdefault(part.scope, []).extend(part.ranks)
    # Nothing is around the graph of ranks that all ran the same. In each phase of a training step
    # the box of a rank has the same name.
    box_around = Nearest[str](
        lambda scope: str(scope.part) if scope.kind == "rank" else None, top=""
    )
    labels: dict[Node, str] = {}
    for node in graph.nodes:
        box = box_around(node.scope) or ""
        if by_stage:
            if stages.get(box) is not None:
                labels[node] = f"stage {stages[box]}"
            continue
        devices = (value.device for value in chain(node.outputs, node.inputs))
        of_device = split_device(next(devices, ""))[0]
        labels[node] = of_device or ranks_text(ranks_in.get(box, [graph.rank]))
    return labels
