"""What module calls were given and gave, and who made them, where a program tells of neither."""

from tbscope.ir.graph import Argument, Graph
from tbscope.ir.regions import OWNED, crossings
from tbscope.sources.programs.places import Places

__all__ = ["describe_edges"]


def describe_edges(graph: Graph, places: Places) -> None:
    """Fill in the arguments and results of each call but the outermost: what enters and leaves it.

    And who made it, where that is another one than holds it. What is read of parameters, buffers
    and constants does not enter. Each value is told once.
    """
    crossed = crossings(graph, lambda scope: places.runs_in.get(scope, scope.parent))
    for call in graph.calls:
        if call.scope is places.root:
            continue
        entering, leaving = crossed[call.scope]
        call.arguments = [
            Argument(None, value) for value in entering if value.producer.kind not in OWNED
        ]
        results = [value for value in leaving if value.producer.kind not in OWNED]
        call.results = results[0] if len(results) == 1 else tuple(results) or None
        call.caller = places.callers.get(call.scope)
