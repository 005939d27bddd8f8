"""What module calls were given and gave, and who made them, where a program tells of neither."""

from tbscope.ir.graph import Argument, Graph
from tbscope.ir.regions import OWNED, crossings
from tbscope.ir.runs import Function, Run
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
    _tell_callers(graph, places)


def _tell_callers(graph: Graph, places: Places) -> None:
    """Tell of modules that call others, which they do not hold, that their forward made the calls.

    As an eager call tells it of every function.
    """
    if not places.callers:
        return
    runs = {caller: Run(Function("forward")) for caller in places.callers.values()}
    for node in graph.nodes:
        if node.kind == "op" and node.scope in runs:
            node.run = runs[node.scope]
    for call in graph.calls:
        caller = places.callers.get(call.scope, places.runs_in.get(call.scope))
        call.run = None if caller is None else runs.get(caller)
