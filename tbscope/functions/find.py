"""Finding of definitions: each call gets a digest of its structure, and equal ones one definition.

Calls are taken from the inside out, so that the digest of a call names those in it by the
digests of their definitions. Names, types, sources and what was measured are in no digest.
"""

from hashlib import blake2b
from typing import Any

from tbscope.functions.calls import CallTree
from tbscope.functions.definition import CallStep, Definition, Given, Input, Ref, Step, Use
from tbscope.functions.reading import Reading
from tbscope.functions.state import StateNames
from tbscope.ir.builder import claim_name
from tbscope.ir.graph import Graph, Node
from tbscope.ir.nests import values_in, walk
from tbscope.ir.scopes import Scope

__all__ = ["find_definitions"]


def find_definitions(graph: Graph) -> Use:
    """Find the definitions of a graph's calls.

    Args:
        graph: A graph that keeps the invariants; it stays as it is.
    Returns:
        The one use of the graph itself, from which all others are reached.
    """
    tree, state = CallTree(graph), StateNames(graph)
    known: dict[str, Definition] = {}
    uses: dict[Scope | None, Use] = {}
    results: dict[Scope, dict[tuple[Node, int], int]] = {}
    for scope in tree.inside_out():
        reading = Reading(scope, tree, state, uses, results)
        if scope is None:
            reading.read_graph(graph)
        else:
            reading.read_call()
            results[scope] = _results(tree, scope)
        digest = _digest(reading)
        definition = known.get(digest)
        if definition is None:
            definition = known[digest] = _define(reading, digest)
        uses[scope] = use = Use(
            definition,
            scope,
            [] if scope is None else tree.calls[scope],
            inputs=reading.inputs,
            waits=reading.waits,
            parts=reading.parts,
        )
        for part in use.parts:
            if isinstance(part, Use):
                part.around = use
    names: set[str] = set()
    for scope in tree.calls:
        use = uses[scope]
        if not use.definition.uses:
            use.definition.name = claim_name(scope.part.label, names, sign="_")
        use.definition.uses.append(use)
    whole = uses[None]
    whole.definition.name = graph.name
    whole.definition.uses.append(whole)
    for definition in known.values():
        _let_escape(definition)
    return whole


def _results(tree: CallTree, scope: Scope) -> dict[tuple[Node, int], int]:
    """Return which tensor among the results of a call each value is, of those made in it."""
    found: dict[tuple[Node, int], int] = {}
    for at, value in enumerate(values_in(tree.calls[scope][0].results)):
        if tree.is_in(value.producer, scope):
            found.setdefault((value.producer, value.index), at)
    return found


def _define(reading: Reading, digest: str) -> Definition:
    steps = tuple(reading.steps)
    written = _written(steps)
    names: set[str] = set()
    inputs = []
    for at, (entry, value) in enumerate(zip(reading.entries, reading.inputs, strict=True)):
        name = entry.name or value.name
        if entry.kind == "captured" and name.isdigit():
            name = "captured"
        inputs.append(Input(claim_name(name, names), entry.kind, at in written))
    return Definition(
        "",
        reading.signatures,
        tuple(inputs),
        len(reading.waits),
        steps,
        reading.results,
        digest,
        reading.ends,
    )


# -- what leaves a call, and what is written in it ----------------------------------------


def _let_escape(definition: Definition) -> None:
    """Tell the definitions in a body what is read of them there."""
    nests = [definition.results]
    for step in definition.steps:
        nests += step.inputs
    for one in definition.signatures[1:]:
        nests.append(one.results)
    for nest in nests:
        for _, ref in walk(nest):
            if isinstance(ref, Given):
                _let_out(ref, definition)


def _let_out(ref: Given, definition: Definition) -> None:
    """Tell every definition on the way down to an operation that what it gives leaves them."""
    path = ref.path
    while len(path) > 1:
        step = definition.steps[path[0]]
        assert isinstance(step, CallStep), "the way leads through calls"
        definition, path = step.definition, path[1:]
        inner = Given(path, ref.output)
        if inner in definition.escapes:
            break
        definition.escapes.add(inner)


def _written(steps: tuple[Step | CallStep, ...]) -> set[int]:
    """Return the places of the inputs that a body writes into, itself or through views."""
    found: set[int] = set()
    for step in steps:
        if isinstance(step, Step):
            into = [step.inputs[place] for place in step.writes]
        else:
            into = [
                ref
                for ref, one in zip(step.inputs, step.definition.inputs, strict=True)
                if one.written
            ]
        for ref in into:
            found |= _seen_in(ref, steps)
    return found


def _seen_in(ref: Ref, steps: tuple[Step | CallStep, ...]) -> set[int]:
    """Return the places of the inputs of which something is a view, or which it is."""
    while isinstance(ref, Given):
        step = steps[ref.path[0]]
        if isinstance(step, CallStep):
            assert ref.output is not None, "an operation is not written"
            called = step.definition
            inner = Given(ref.path[1:], ref.output) if ref.path[1:] else called.given[ref.output]
            within = _seen_in(inner, called.steps)
            return {place for inner in within for place in _seen_in(step.inputs[inner], steps)}
        if step.role != "view" or not step.inputs:
            return set()
        ref = step.inputs[0]
    return {ref.place}


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
