"""Functions: what `graph.functions()` gives, the definitions of a graph and all their uses.

Each call gets a digest of its structure, and equal ones one definition. Calls are taken from
the inside out, so that the digest of a call names those in it by the digests of their
definitions. Names, types, sources and what was measured are in no digest.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, overload

from tbscope.errors import NotFoundError
from tbscope.functions.canonicalize import CallTree, Reading
from tbscope.functions.definition import CallStep, Definition, Given, Input, Use
from tbscope.ir.builder import claim_name
from tbscope.ir.graph import Call, Graph, require_graph
from tbscope.ir.pytree import walk
from tbscope.ir.scopes import Scope
from tbscope.messages import did_you_mean, shown
from tbscope.utils.components import inner_first
from tbscope.utils.gc_pause import not_collecting

__all__ = ["Functions", "find_definitions"]


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

    def __str__(self) -> str:
        return "\n\n".join(map(str, [*self._definitions, self.main]))

    def __repr__(self) -> str:
        uses = sum(len(one.uses) for one in self._definitions)
        return f"<Functions of {self.graph.name}: {len(self)} definitions, {uses} uses>"


def find_definitions(graph: Graph) -> Use:
    """Find the definitions of a graph's calls.

    Args:
        graph: A graph that keeps the invariants; it stays as it is.
    Returns:
        The one use of the graph itself, from which all others are reached.
    """
    tree = CallTree(graph)
    known: dict[str, Definition] = {}
    for scope in reversed(tree.parts):
        reading = Reading(scope, tree, graph)
        digest = _digest(reading)
        definition = known.get(digest)
        if definition is None:
            definition = known[digest] = _define(reading, digest)
        use = Use(
            definition,
            scope,
            [] if scope is None else tree.calls[scope],
            inputs=reading.inputs,
            waits=reading.waits,
            parts=reading.parts,
        )
        tree.add(use)
    names: set[str] = set()
    for scope in tree.calls:
        use = tree.uses[scope]
        if not use.definition.uses:
            use.definition.name = claim_name(scope.part.label, names, sign="_")
        use.definition.uses.append(use)
    whole = tree.uses[None]
    whole.definition.name = graph.name
    whole.definition.uses.append(whole)
    for definition in known.values():
        _let_escape(definition)
    return whole


def _define(reading: Reading, digest: str) -> Definition:
    names: set[str] = set()
    inputs = []
    for entry, value in zip(reading.entries, reading.inputs, strict=True):
        name = entry.name or value.name
        if entry.kind == "captured" and name.isdigit():
            name = "captured"
        inputs.append(Input(claim_name(name, names), entry.kind))
    return Definition(
        "",
        reading.signatures,
        tuple(inputs),
        tuple(reading.steps),
        reading.results,
        digest,
        reading.ends,
    )


# -- what leaves a call -------------------------------------------------------------------


def _let_escape(definition: Definition) -> None:
    """Tell the definitions on the way down to what a body reads in them that it leaves them."""
    nests = [definition.results, *(one.results for one in definition.signatures[1:])]
    for step in definition.steps:
        nests += step.inputs
    for nest in nests:
        for _, ref in walk(nest):
            inner, path = definition, ref.path if isinstance(ref, Given) else ()
            while len(path) > 1:
                step = inner.steps[path[0]]
                assert isinstance(step, CallStep), "the way leads through calls"
                inner, path = step.definition, path[1:]
                inner.escapes.add(Given(path, ref.output))


# -- digests --------------------------------------------------------------------------------


def _digest(reading: Reading) -> str:
    told = (
        reading.signatures,
        # What is captured is told apart by its place alone.
        reading.entries,
        len(reading.waits),
        reading.steps,
        () if reading.signatures else reading.results,
        reading.ends,
    )
    text = repr(_form(told)).encode("utf-8", "backslashreplace")
    return blake2b(text, digest_size=16).hexdigest()


def _form(told: Any) -> Any:
    """Return a form with one text for equal things alone: `1`, `1.0` and `True` differ."""
    if isinstance(told, Definition):
        return told.digest
    if isinstance(told, tuple | list):
        return (type(told).__name__, *map(_form, told))
    if isinstance(told, dict):
        return ("dict", *[(_form(key), _form(held)) for key, held in told.items()])
    return (type(told).__name__, repr(told))
