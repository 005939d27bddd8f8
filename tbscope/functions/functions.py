"""Functions: what `graph.functions()` gives, the definitions of a graph and all their uses."""

from collections.abc import Iterator, Sequence
from typing import overload

from tbscope.collector import not_collecting
from tbscope.cycles import inner_first
from tbscope.errors import NotFoundError
from tbscope.functions.definition import Definition, Use
from tbscope.functions.find import find_definitions
from tbscope.ir.graph import Call, Graph, require_graph
from tbscope.ir.scopes import Scope
from tbscope.words import did_you_mean, shown

__all__ = ["Functions"]


class Functions(Sequence[Definition]):
    """The definitions of a graph, each after those that it uses.

    Args:
        graph: The graph; it stays as it is.
    Raises:
        ArgumentError: It is no graph.

    Attributes:
        graph: The graph.
        main: What stands outside of all calls: a definition with one use, not among the others.
    """

    def __init__(self, graph: Graph) -> None:
        require_graph(graph, "functions")
        self.graph = graph
        # What it makes is much, and none of it garbage.
        with not_collecting():
            whole = find_definitions(graph)
        self.main: Definition = whole.definition
        self._uses: dict[Scope, Use] = {}
        pending = [whole]
        while pending:
            for part in reversed(pending.pop().parts):
                if isinstance(part, Use):
                    pending.append(part)
                    assert part.scope is not None, "only the graph itself has no scope"
                    self._uses[part.scope] = part
        # The graph itself comes last, and is none of them.
        self._definitions = inner_first(self.main, Definition.nested)[:-1]

    def use(self, call: Call | Scope) -> Use:
        """Return the use that a call, or its scope, is.

        Raises:
            NotFoundError: No call of this graph has that scope.
        """
        found = self._uses.get(call.scope if isinstance(call, Call) else call)
        if found is None:
            raise NotFoundError(
                f"the graph of {self.graph.name} holds no call {shown(call)}",
                why="uses are found by the calls of this graph, or by their scopes",
                fix="graph.functions().use(graph.calls[0])",
            )
        return found

    def find(self, name: str) -> Definition:
        """Return the definition with a name, as it is printed (`Linear_2`).

        Raises:
            NotFoundError: None has that name; the message tells near ones.
        """
        for definition in self._definitions:
            if definition.name == name:
                return definition
        known = [one.name for one in self._definitions]
        raise NotFoundError(
            f"the graph of {self.graph.name} has no definition named {shown(name)}",
            why="definitions are named after their classes, further ones with a number",
            fix=did_you_mean(str(name), known, "print(graph.functions())"),
        )

    @overload
    def __getitem__(self, index: int) -> Definition: ...
    @overload
    def __getitem__(self, index: slice) -> list[Definition]: ...
    def __getitem__(self, index: int | slice) -> Definition | list[Definition]:
        """Return the definition at a place."""
        return self._definitions[index]

    def __len__(self) -> int:
        return len(self._definitions)

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._definitions)

    def __str__(self) -> str:
        return "\n\n".join(map(str, [*self._definitions, self.main]))

    def __repr__(self) -> str:
        uses = sum(len(one.uses) for one in self._definitions)
        return f"<Functions of {self.graph.name}: {len(self)} definitions, {uses} uses>"
