"""Functions: the result of `graph.functions()`, the definitions of a graph and all their uses.

Each call is reduced to a canonical form (`CanonicalCall`) and hashed; calls with equal digests
share a definition. Inner calls come first, so that a call's digest contains the digests of the
definitions that it uses. Names, types, source lines and measurements are not part of a digest.
"""

from hashlib import blake2b

from tbscope.errors import NotFoundError
from tbscope.functions.canonicalize import CallTree, CanonicalCall
from tbscope.functions.definition import CallStep, Definition, Given, Input, Use
from tbscope.ir.builder import claim_name
from tbscope.ir.graph import Graph, require_graph
from tbscope.ir.pytree import walk
from tbscope.ir.scopes import Scope
from tbscope.messages import did_you_mean, shown
from tbscope.utils.components import inner_first
from tbscope.utils.gc_pause import not_collecting

__all__ = ["Functions", "find_definitions"]


class Functions(list[Definition]):
    """The definitions of a graph, each after the definitions that it uses.

    Args:
        graph: The graph, which is not changed.
    Raises:
        ArgumentError: The argument is not a graph.

    Attributes:
        graph: The graph.
        main: The definition of everything outside of all calls, with a single use; it is not an
            item of this sequence.
        uses: The use of each call by its scope.
    """

    def __init__(self, graph: Graph) -> None:
        require_graph(graph, "functions")
        self.graph = graph
        # The search creates many objects and no garbage, so the garbage collector is suspended.
        with not_collecting():
            uses = find_definitions(graph)
        self.main = uses.pop(None).definition
        self.uses = {scope: use for scope, use in uses.items() if scope is not None}
        # The last definition is `main`.
        super().__init__(inner_first(self.main, Definition.nested)[:-1])

    def find(self, name: str) -> Definition:
        """Return the definition with a printed name.

        Args:
            name: The name (`Linear_2`).
        Raises:
            NotFoundError: No definition has that name; the message suggests similar names.
        """
        for definition in self:
            if definition.name == name:
                return definition
        names = [item.name for item in self]
        raise NotFoundError(
            f"the graph of {self.graph.name} has no definition named {shown(name)}",
            why="definitions are named after their classes, further ones with a number",
            fix=did_you_mean(str(name), names, "print(graph.functions())"),
        )

    def __str__(self) -> str:
        return "\n\n".join(map(str, [*self, self.main]))

    def __repr__(self) -> str:
        uses = sum(len(definition.uses) for definition in self)
        return f"<Functions of {self.graph.name}: {len(self)} definitions, {uses} uses>"


def find_definitions(graph: Graph) -> dict[Scope | None, Use]:
    """Return the use of each call by its scope, and that of the graph itself (None).

    Args:
        graph: A graph that satisfies the invariants; it is not changed.
    """
    tree = CallTree(graph)
    definitions: dict[str, Definition] = {}
    # Inner calls come first, so that their uses exist when an outer call is read.
    for scope in reversed(tree.parts):
        reading = CanonicalCall(scope, tree, graph)
        digest = _digest(reading)
        definition = definitions.get(digest)
        if definition is None:
            definition = definitions[digest] = _define(reading, digest)
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
    # Names are numbered in the order of the calls.
    for scope in tree.calls:
        use = tree.uses[scope]
        if not use.definition.uses:
            use.definition.name = claim_name(scope.part.label, names, sign="_")
        use.definition.uses.append(use)
    main_use = tree.uses[None]
    main_use.definition.name = graph.name
    main_use.definition.uses.append(main_use)
    for definition in definitions.values():
        _let_escape(definition)
    return tree.uses


def _define(reading: CanonicalCall, digest: str) -> Definition:
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


# -- escaping tensors ---------------------------------------------------------------------


def _let_escape(definition: Definition) -> None:
    """Record in called definitions (`escapes`) the inner tensors that this definition reads."""
    trees = [definition.results, *(signature.results for signature in definition.signatures[1:])]
    for step in definition.steps:
        trees += step.inputs
    for tree in trees:
        for _, ref in walk(tree):
            inner, path = definition, ref.path if isinstance(ref, Given) else ()
            while len(path) > 1:
                step = inner.steps[path[0]]
                assert isinstance(step, CallStep), "the way leads through calls"
                inner, path = step.definition, path[1:]
                inner.escapes.add(Given(path, ref.output))


# -- digests --------------------------------------------------------------------------------


def _digest(reading: CanonicalCall) -> str:
    structure = (
        reading.signatures,
        # Entries of captured tensors have no name: only their position is part of the digest.
        reading.entries,
        len(reading.waits),
        reading.steps,
        # The results of a call are in its signature already.
        () if reading.signatures else reading.results,
        reading.ends,
    )
    text = repr(_form(structure)).encode("utf-8", "backslashreplace")
    return blake2b(text, digest_size=16).hexdigest()


def _form(content: object) -> object:
    """Return a form whose text is equal for equal values only: `1`, `1.0` and `True` differ."""
    if isinstance(content, Definition):
        return content.digest
    if isinstance(content, tuple | list):
        return (type(content).__name__, *map(_form, content))
    if isinstance(content, dict):
        return ("dict", *[(_form(key), _form(value)) for key, value in content.items()])
    return (type(content).__name__, repr(content))
