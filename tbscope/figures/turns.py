"""Turns: modules that run by turns with what is outside of them, found in the finished graph.

The calls of one model nest in each other, so that the boxes of a level read each other in one
direction. Where a part of a module is called from outside of it (the embedding of an encoder by
the decoder), its box and another one point at each other. Told is only what no placement helps:
not what stands with its caller, nor what a list holds.
"""

from collections.abc import Iterator

from tbscope.cycles import find_cycles
from tbscope.ir.graph import Graph, Node, Note
from tbscope.ir.guests import find_guests
from tbscope.ir.levels import Unit, level_links
from tbscope.ir.nodes import OWNED
from tbscope.ir.scopes import Scope

__all__ = ["turn_notes"]

_MOST_NAMED = 4


def turn_notes(graph: Graph) -> Iterator[Note]:
    """Return a note for each group of modules that read each other by turns."""
    again = set(_entered_again(graph))
    if not again:
        return
    guests = find_guests(graph)
    holders = {_holder(scope) for scope in again}
    for holder in sorted(holders, key=lambda scope: scope.path if scope else ""):
        links = level_links(graph, holder, hosts=guests.hosts, nodes=guests.nodes)
        for cycle in find_cycles(links):
            held = sorted(_name(unit) for unit in cycle if unit in again)
            if held:
                yield Note(_text(held[0], sorted({_name(unit) for unit in cycle} - {held[0]})))


def _holder(scope: Scope) -> Scope | None:
    """Return the called module, or the other box, around a scope and the lists that hold it."""
    return next((around for around in scope.ancestors() if around.kind != "container"), None)


def _text(held: str, others: list[str]) -> str:
    more = len(others) - _MOST_NAMED
    named = ", ".join(others[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
    return f"{held} and {named} read each other by turns: a part of {held} was called from outside"


def _name(unit: Unit) -> str:
    if isinstance(unit, Node):
        return unit.name if unit.kind == "input" else f"%{unit.name} ({unit.op})"
    return unit.qualified_name or unit.path


def _entered_again(graph: Graph) -> Iterator[Scope]:
    """Return the modules in whose scopes something runs after they have been left.

    A list runs nothing by itself; a module that is never called may run in its other methods.
    """
    # What is open stands in each other, the innermost last; the outermost is the top level.
    inside: list[Scope | None] = [None]
    left: set[Scope | None] = set()
    last: Scope | None = None
    for node in graph.nodes:
        if node.scope is last or node.kind in OWNED or node.phase != "forward":
            continue
        if node.control_inputs and not node.inputs:
            # What an operation has saved: it ran with that, and was found in a later pass.
            continue
        around = last = node.scope
        entered: list[Scope] = []
        while around is not None and around not in inside:
            entered.append(around)
            around = around.parent
        while inside[-1] is not around:
            left.add(inside.pop())
        for scope in reversed(entered):
            if scope in left and (scope.kind == "module" or scope is last):
                yield scope
            inside.append(scope)
