"""What module calls were given and gave, and who made them, where a program tells of neither."""

from tbscope.ir.graph import Graph
from tbscope.ir.regions import describe_calls
from tbscope.sources.programs.places import Places

__all__ = ["describe_edges"]


def describe_edges(graph: Graph, places: Places) -> None:
    """Fill in the arguments and results of each call but the outermost: what enters and leaves it.

    And who made it, where that is another one than holds it. What is read of parameters, buffers
    and constants does not enter. Each value is told once.
    """
    calls = [call for call in graph.calls if call.scope is not places.root]
    describe_calls(graph, calls, lambda scope: places.runs_in.get(scope, scope.parent))
    for call in calls:
        call.caller = places.callers.get(call.scope)
