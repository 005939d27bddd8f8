"""State: what parameters and buffers are called from the call on that reads them."""

import re
from typing import TYPE_CHECKING

from tbscope.ir.graph import Call, Graph, Node
from tbscope.ir.nodes import STATE

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope

__all__ = ["StateNames"]

# Two models of one recording may have parameters of one name; the later has a number behind.
_REPEATED = re.compile(r"~[0-9]+\Z")


class StateNames:
    """The names of the parameters and buffers of one graph.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        # Which of all parameters each is: tied ones, which have one node, have one number.
        self._numbers = {
            (call.scope, held.name): held.number for call in graph.calls for held in call.parameters
        }
        self._by_name = {
            f"{module.name}.{held.name}".removeprefix("."): held.number
            for module in graph.modules
            for held in module.parameters
        }
        self._own: dict[Scope, dict[int, str]] = {}

    def name(self, node: Node, call: Call) -> str | None:
        """Return what a parameter or buffer is called from a module on: `weight`, `fc.weight`.

        Returns:
            None for what neither the module of the call registers nor one below it.
        """
        if node.kind not in STATE:
            return None
        own = self._own_of(call)
        if own and (number := self._number(node)) in own:
            return own[number]
        return _below(_REPEATED.sub("", node.name), call.qualified_name)

    def name_below(self, name: str, inner: Call, outer: Call) -> str | None:
        """Return what that is called from an outer module on which has a name in an inner one.

        Returns:
            None where the inner module is not registered below the outer one.
        """
        if inner.qualified_name is None:
            return None
        way = _below(inner.qualified_name, outer.qualified_name)
        return None if way is None else f"{way}.{name}"

    def _own_of(self, call: Call) -> dict[int, str]:
        own = self._own.get(call.scope)
        if own is None:
            named = [(held.number, held.name) for held in call.parameters if held.number >= 0]
            own = self._own[call.scope] = dict(reversed(named))
        return own

    def _number(self, node: Node) -> int:
        name = _REPEATED.sub("", node.name)
        if node.scope is not None:
            number = self._numbers.get((node.scope, name.rpartition(".")[2]), -1)
            if number >= 0:
                return number
        return self._by_name.get(node.name, -1)


def _below(name: str, above: str | None) -> str | None:
    if above is None:
        return None
    if not above:
        return name
    return name[len(above) + 1 :] if name.startswith(f"{above}.") else None
