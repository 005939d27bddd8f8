"""What module calls were given and gave, where a program tells of neither: from the edges."""

from tbscope.ir.graph import Argument, Graph, Node, Value
from tbscope.ir.nodes import OWNED
from tbscope.ir.scopes import Scope
from tbscope.sources.programs.places import Places

__all__ = ["describe_edges"]


def describe_edges(graph: Graph, places: Places) -> None:
    """Fill in the arguments and results of each call but the outermost: what enters and leaves it.

    What is read of parameters, buffers and constants does not enter. Each value is told once.
    """
    chains: dict[Scope | None, tuple[Scope, ...]] = {None: ()}

    def chain(scope: Scope | None) -> tuple[Scope, ...]:
        """Return the calls around a node, innermost first."""
        known = chains.get(scope)
        if known is None:
            assert scope is not None
            above = chain(places.runs_in.get(scope, scope.parent))
            known = chains[scope] = (scope, *above) if scope.kind == "module" else above
        return known

    entering: dict[Scope, dict[Value, None]] = {call.scope: {} for call in graph.calls}
    leaving: dict[Scope, dict[Value, None]] = {call.scope: {} for call in graph.calls}

    def cross(value: Value, reader: tuple[Scope, ...], owned: bool) -> None:
        giver = chain(value.producer.scope)
        if giver is reader:
            return
        inner, outer = set(giver), set(reader)
        for scope in giver:
            if scope not in outer:
                leaving[scope][value] = None
        if not owned:
            for scope in reader:
                if scope not in inner:
                    entering[scope][value] = None

    for node in graph.nodes:
        here = chain(node.scope)
        for value in node.inputs:
            cross(value, here, value.producer.kind in OWNED)
    for output in graph.outputs:
        cross(output.value, (), False)
    order = {node: at for at, node in enumerate(graph.nodes)}
    for call in graph.calls:
        if call.scope is places.root:
            continue
        call.arguments = [Argument(None, value) for value in entering[call.scope]]
        made = sorted(leaving[call.scope], key=lambda value: (order[value.producer], value.index))
        results = [value for value in made if _is_result(value.producer)]
        call.results = results[0] if len(results) == 1 else tuple(results) or None


def _is_result(node: Node) -> bool:
    return node.kind not in OWNED
