"""Finding of definitions: each call gets a key of its structure, and equal keys one definition.

Calls are taken from the inside out, so that the key of a call names those in it by the
digests of their definitions. Names, types, sources and what was measured stand in no key.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from tbscope.functions.calls import CallTree
from tbscope.functions.definition import (
    CallStep,
    Definition,
    Given,
    Input,
    Read,
    Ref,
    Signature,
    Step,
    Use,
)
from tbscope.functions.reading import Reading
from tbscope.functions.state import StateNames
from tbscope.ir.graph import Argument, Graph, Nest, Node
from tbscope.ir.nests import values_in, walk
from tbscope.ir.scopes import Scope

__all__ = ["find_definitions"]

_Key = tuple[Any, ...]


def find_definitions(graph: Graph) -> Use:
    """Find the definitions of a graph's calls.

    Args:
        graph: A graph that keeps the invariants; it stays as it is.
    Returns:
        The one use of the graph itself, from which all others are reached.
    """
    tree, state = CallTree(graph), StateNames(graph)
    known: dict[_Key, Definition] = {}
    uses: dict[Scope | None, Use] = {}
    results: dict[Scope, dict[tuple[Node, int], int]] = {}
    for scope in tree.inside_out():
        reading = Reading(scope, tree, state, uses, results)
        if scope is None:
            reading.read_graph(graph)
        else:
            reading.read_call()
            results[scope] = _results(tree, scope)
        key = _key(reading)
        definition = known.get(key)
        if definition is None:
            definition = known[key] = _define(reading, key)
        uses[scope] = use = Use(
            definition,
            scope,
            [] if scope is None else tree.calls[scope],
            inputs=reading.inputs,
            waits=reading.waits,
            parts=reading.parts,
            scopes=reading.scopes,
        )
        for part in use.parts:
            if isinstance(part, Use):
                part.around = use
    names = _Names()
    for scope in tree.calls:
        use = uses[scope]
        if not use.definition.uses:
            use.definition.name = names.new(scope.part.label)
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


def _define(reading: Reading, key: _Key) -> Definition:
    steps = tuple(reading.steps)
    written = _written(steps)
    names = _Names()
    inputs = []
    for at, (entry, value) in enumerate(zip(reading.entries, reading.inputs, strict=True)):
        name = entry.name or value.name
        if entry.kind == "captured" and name.isdigit():
            name = "captured"
        inputs.append(Input(names.new(name, "~"), entry.kind, at in written))
    return Definition(
        "",
        reading.signatures,
        tuple(inputs),
        len(reading.waits),
        steps,
        reading.results,
        blake2b(repr(key).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest(),
        reading.ends,
    )


class _Names:
    """Gives each name once: the second `Linear` is `Linear_2`."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def new(self, name: str, sign: str = "_") -> str:
        unique, number = name, 2
        while unique in self._taken:
            unique, number = f"{name}{sign}{number}", number + 1
        self._taken.add(unique)
        return unique


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


# -- keys -----------------------------------------------------------------------------------


def _key(reading: Reading) -> _Key:
    return (
        tuple(map(_signature_key, reading.signatures)),
        # What is captured is told apart by its place alone.
        tuple([(entry.kind, entry.name) for entry in reading.entries]),
        len(reading.waits),
        tuple(map(_step_key, reading.steps)),
        () if reading.signatures else _nest_key(reading.results),
        tuple(tuple(map(_nest_key, waits)) for waits in reading.ends),
    )


def _signature_key(one: Signature) -> _Key:
    return (
        one.class_name,
        _facts_key(one.hyperparameters),
        one.training,
        one.number,
        _arguments_key(one.arguments),
        _nest_key(one.results),
        one.state,
    )


def _step_key(step: Step | CallStep) -> _Key:
    shared = (
        tuple(map(_nest_key, step.inputs)),
        tuple(map(_nest_key, step.waits)),
        step.places,
    )
    if isinstance(step, CallStep):
        return (step.definition.digest, *shared)
    return (
        step.op,
        step.kind,
        _arguments_key(step.arguments),
        step.outputs,
        step.writes,
        step.role,
        step.random,
        step.phase,
        _facts_key(step.attributes) if step.attributes else (),
        *shared,
    )


def _arguments_key(arguments: tuple[Argument, ...]) -> _Key:
    return tuple([(name, _nest_key(nest)) for name, nest in arguments])


def _facts_key(facts: Mapping[str, Any]) -> _Key:
    return tuple(sorted((name, _nest_key(told)) for name, told in facts.items()))


def _nest_key(nest: Nest) -> _Key:
    """Return a nest in a form that is equal for equal ones alone: `1`, `1.0`, `True` differ."""
    kind = type(nest)
    if kind is Read or kind is Given:
        return (kind.__name__, *nest)
    if kind is tuple or kind is list:
        return (kind.__name__, *map(_nest_key, nest))
    if kind is dict:
        return ("dict", *[(_nest_key(key), _nest_key(held)) for key, held in nest.items()])
    return (kind.__name__, repr(nest))
