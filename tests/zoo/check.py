"""Compares what tbscope says of a model with what the oracles say."""

import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch

import tbscope
from tests.zoo.oracles import (
    CallFact,
    RunFacts,
    bind,
    fingerprint,
    idle_parameters,
    moved_outputs,
    observe,
    reaching,

    seeded,
    tensor_fact,
    tensors_in,
)

__all__ = ["ASPECTS", "Verdict", "check"]

ASPECTS = (
    "drawn",
    "quiet",
    "calls",
    "scopes",
    "operations",
    "edges",
    "shapes",
    "unchanged",
    "converted",
)
"""What is judged; each is right, or wrong with reasons."""


@dataclass
class Verdict:
    """What is wrong with the graph of one model in one mode; nothing, where all is right.

    Attributes:
        wrong: For each aspect that is wrong, the reasons.
        nodes: Nodes of the graph.
        calls: Calls of the graph.
        trace_ms: What the trace took, in milliseconds.
        forward_ms: What the model alone took, in milliseconds.
        beyond: Parameters that reach an output in the graph and not in autograd's.
        doubtful: Those of them whose values move no output either.
        unproved: What an oracle could not tell.
    """

    wrong: dict[str, list[str]] = field(default_factory=dict)
    nodes: int = 0
    calls: int = 0
    trace_ms: float = 0.0
    forward_ms: float = 0.0
    beyond: int = 0
    doubtful: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    def add(self, aspect: str, reasons: Iterator[str]) -> None:
        """Note the first reasons why an aspect is wrong."""
        found = list(reasons)
        if found:
            shown = found[:5]
            if len(found) > len(shown):
                shown.append(f"and {len(found) - len(shown)} more")
            self.wrong.setdefault(aspect, []).extend(shown)


def check(
    model: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None, *, training: bool
) -> Verdict:
    """Trace a model and compare the graph with the oracles.

    Args:
        model: What is traced; anything that can be called.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        training: The mode.
    """
    kwargs = dict(kwargs or {})
    verdict = Verdict()
    graph = _trace(verdict, model, args, kwargs, training)
    if graph is None:
        return verdict
    verdict.nodes, verdict.calls = len(graph.nodes), len(graph.calls)
    facts = observe(model, args, kwargs, training=training)
    verdict.add("calls", _wrong_calls(graph, facts))
    if len(graph.calls) == len(facts.calls):
        verdict.add("scopes", _wrong_scopes(graph, facts, model))
        verdict.add("operations", _wrong_operations(graph, facts))
        verdict.add("shapes", _wrong_results(graph, facts))
    verdict.add("shapes", _wrong_values(graph))
    verdict.add("shapes", _wrong_outputs(graph, facts))
    verdict.add("edges", _dangling(graph))
    verdict.add("edges", _wrong_inputs(graph, bind(model, args, kwargs)))
    verdict.add("edges", _lost_edges(graph, verdict, (model, args, kwargs, training)))
    verdict.add("edges", _lost_reads(graph, verdict, (model, args, kwargs, training)))
    verdict.add("converted", _wrong_conversion(graph))
    return verdict


def _trace(
    verdict: Verdict, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool
) -> tbscope.Graph | None:
    """Trace; note what the model is afterwards, and what was warned."""
    with seeded(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = fingerprint(model, (args, kwargs))
        given = {"input_to_model": args} if args or not kwargs else {}
        own: list[str] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            begin = time.perf_counter()
            try:
                graph = tbscope.trace(model, **given, kwargs=kwargs, training=training)
            except Exception as error:  # noqa: BLE001  (Any error is what is looked for.)
                verdict.add("drawn", iter([f"{type(error).__name__}: {error}"]))
                graph = None
            verdict.trace_ms = (time.perf_counter() - begin) * 1000
            own = [str(w.message) for w in caught]
        after = fingerprint(model, (args, kwargs))
    with warnings.catch_warnings(record=True) as caught, torch.no_grad(), seeded():
        warnings.simplefilter("always")
        begin = time.perf_counter()
        _plainly(model, args, kwargs, training)
        verdict.forward_ms = (time.perf_counter() - begin) * 1000
        plain = Counter(str(w.message) for w in caught)
    written = {
        key
        for key in after.facts
        if key.startswith("version of ") and after.facts[key] != before.facts.get(key)
    }
    may = _written_by_the_model(before, fingerprint(model, (args, kwargs))) if written else set()
    verdict.add(
        "unchanged",
        (text for text in before.differences(after) if text.split(":")[0] not in may),
    )
    verdict.add("quiet", (f"warned: {text:.100}" for text in (Counter(own) - plain)))
    return graph


def _plainly(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool) -> Any:
    """Call a model in a mode with nothing watching; leave what it writes."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    flags = [module.training for module in modules]
    for module in modules:
        module.training = training
    try:
        return model(*args, **kwargs)
    finally:
        for module, flag in zip(modules, flags, strict=True):
            module.training = flag


def _written_by_the_model(before: Any, after: Any) -> set[str]:
    """Give the version counters that the model moves by itself in a plain call."""
    return {
        key
        for key in after.facts
        if key.startswith("version of ") and after.facts[key] != before.facts.get(key)
    }


# -- calls and scopes -----------------------------------------------------------------------


def _wrong_calls(graph: tbscope.Graph, facts: RunFacts) -> Iterator[str]:
    """Compare number, order, names and classes of the calls."""
    if len(graph.calls) != len(facts.calls):
        yield f"{len(graph.calls)} calls instead of {len(facts.calls)}"
    for place, (call, fact) in enumerate(zip(graph.calls, facts.calls, strict=False)):
        if call.qualified_name != fact.name:
            yield f"call {place} is of {call.qualified_name!r} instead of {fact.name!r}"
        if call.class_name.rpartition(".")[2] != fact.class_name:
            yield f"call {place} ({fact.name}) is of class {call.class_name}"


def _wrong_scopes(graph: tbscope.Graph, facts: RunFacts, model: Any) -> Iterator[str]:
    """Compare the scopes of the calls with `named_modules()`, and look for more scopes."""
    scopes = [call.scope for call in graph.calls]
    if len(set(scopes)) != len(scopes):
        yield f"{len(scopes) - len(set(scopes))} calls share a scope with another"
    paths = Counter(scope.path for scope in graph.scopes())
    yield from (f"{count} scopes have the path {path}" for path, count in paths.items() if count > 1)
    yield from (
        f"the scope of {fact.name!r} is {scope.path}"
        for scope, fact in zip(scopes, facts.calls, strict=True)
        if fact.name is not None and _steps(scope) != fact.steps
    )
    yield from _empty_scopes(graph, facts)
    called = set(scopes)
    known = {name for name, _ in model.named_modules()} if hasattr(model, "named_modules") else set()
    for scope in graph.scopes():
        if scope in called:
            if scope.kind != "module":
                yield f"{scope.path} is of kind {scope.kind!r} and is a call's"
        elif scope.kind == "module":
            yield f"{scope.path} is the scope of no call"
        elif scope.kind == "container" and scope.qualified_name not in known:
            yield f"{scope.path} is a container named {scope.qualified_name!r}, which is no module"
        elif scope.kind == "hand":
            yield f"{scope.path} is a scope by hand, and there is none"


def _empty_scopes(graph: tbscope.Graph, facts: RunFacts) -> Iterator[str]:
    """Look for called leaf modules that ran an operation and have none in their scope."""
    filled = {node.scope for node in graph.nodes if node.kind == "op"}
    for call, fact in zip(graph.calls, facts.calls, strict=True):
        idle = not fact.operations and not fact.results  # Given nothing, it gives nothing.
        if fact.leaf and not idle and call.scope not in filled:
            ran = ", ".join(fact.operations[:3]) or "nothing"
            yield f"no node stands in {call.scope.path}, which ran {ran}"


def _wrong_operations(graph: tbscope.Graph, facts: RunFacts) -> Iterator[str]:
    """Compare the ATen operations of each call with those of the nodes in its scope.

    What runs in a method that is not forward may stand below, in the scope of the module
    whose method it is.
    """
    kernels: dict[tbscope.Scope | None, list[str]] = defaultdict(list)
    for node in graph.nodes:
        kernels[node.scope].extend(node.kernels)
    lost: dict[tbscope.Scope | None, Counter[str]] = {}
    more: dict[tbscope.Scope | None, Counter[str]] = {}
    wanted: dict[tbscope.Scope | None, list[str]] = {None: list(map(_short, facts.outside))}
    for call, fact in zip(graph.calls, facts.calls, strict=True):
        wanted.setdefault(call.scope, []).extend(map(_short, fact.operations))
    for scope in {**wanted, **kernels}:
        there = _without_reads(wanted.get(scope, []))
        here = _without_reads(kernels.get(scope, []))
        lost[scope] = Counter(there) - Counter(here)
        more[scope] = Counter(here) - Counter(there)
        if here != there and not lost[scope] and not more[scope]:
            yield f"{scope} ran its operations in another order"
    for scope, operations in more.items():
        for above in (*scope.ancestors(), None) if scope else ():
            moved = operations & lost.get(above, Counter())
            operations -= moved
            lost[above] = lost.get(above, Counter()) - moved
    for text, found in (("lost", lost), ("made up", more)):
        for scope, operations in found.items():
            if operations:
                names = ", ".join(f"{n} {name}" for name, n in operations.items())
                yield f"{scope} {text} {names}"


def _short(operation: str) -> str:
    namespace, name = operation.split(".")[:2]
    return f"{namespace}::{name}"


def _without_reads(operations: list[str]) -> list[str]:
    """Leave out what Python reads of a tensor: no operation of the graph, told in its notes."""
    return [
        name
        for name, after in zip_longest(operations, operations[1:])
        if name != _READ and not (name == "aten::detach" and after == _READ)
    ]


_READ = "aten::_local_scalar_dense"


def _steps(scope: tbscope.Scope) -> tuple[tuple[str, str | None], ...]:
    """Give (class, attribute) of each step, without the numbers of repeated calls."""
    return tuple((part.label, part.attribute) for part in scope.parts)


# -- shapes ---------------------------------------------------------------------------------


def _fact(value: tbscope.Value) -> tuple[Any, str]:
    return value.shape, value.dtype


def _wrong_values(graph: tbscope.Graph) -> Iterator[str]:
    for node in graph.nodes:
        for value in node.outputs:
            if value.shape is None or None in value.shape or not value.dtype:
                yield f"%{value.name} of {node.op} has shape {value.shape}, dtype {value.dtype!r}"


def _wrong_outputs(graph: tbscope.Graph, facts: RunFacts) -> Iterator[str]:
    got = [(out.name, _fact(out.value)) for out in graph.outputs]
    if Counter(fact for _, fact in got) != Counter(fact for _, fact in facts.outputs):
        yield f"outputs {_brief(got)} instead of {_brief(facts.outputs)}"
    elif [name for name, _ in got] != [name or "out" for name, _ in facts.outputs]:
        names = {name for name, _ in got} ^ {name or "out" for name, _ in facts.outputs}
        if names and any(name.split(".")[0] in _heads(facts) for name in names):
            yield f"outputs are called {_brief(got)} instead of {_brief(facts.outputs)}"
    else:
        yield from (
            f"output {one[0]} is {one[1]} instead of {two[1]}"
            for one, two in zip(got, facts.outputs, strict=True)
            if one[1] != two[1]
        )


def _heads(facts: RunFacts) -> set[str]:
    """Give the keys of a result that hold a tensor directly."""
    return {name for name, _ in facts.outputs if name and "." not in name}


def _brief(found: list[tuple[str, Any]]) -> str:
    text = ", ".join(f"{name}{fact[0]}{fact[1]}" for name, fact in found[:6])
    return f"[{text}{', …' if len(found) > 6 else ''}] ({len(found)})"


def _wrong_results(graph: tbscope.Graph, facts: RunFacts) -> Iterator[str]:
    for call, fact in zip(graph.calls, facts.calls, strict=True):
        got = [_fact(value) for value in _values_in(call.results)]
        if Counter(fact.results) - Counter(got):  # A cache may be opened, and need not be.
            yield f"{call.scope.path} gave {got[:4]} instead of {fact.results[:4]}"


def _values_in(nest: Any) -> Iterator[tbscope.Value]:
    if isinstance(nest, tbscope.Value):
        yield nest
    elif isinstance(nest, dict):
        for entry in nest.values():
            yield from _values_in(entry)
    elif isinstance(nest, list | tuple):
        for entry in nest:
            yield from _values_in(entry)


# -- edges ----------------------------------------------------------------------------------


def _dangling(graph: tbscope.Graph) -> Iterator[str]:
    """Look for edges that end nowhere or run backwards."""
    seen: set[tbscope.Node] = set()
    for node in graph.nodes:
        for value in node.inputs:
            if value.producer not in seen:
                yield f"%{node.name} reads %{value.name}, which is not before it"
            elif value not in value.producer.outputs:
                yield f"%{node.name} reads %{value.name}, which is no output of its producer"
        for other in node.control_inputs:
            if other not in seen:
                yield f"%{node.name} waits for %{other.name}, which is not before it"
        seen.add(node)
    for out in graph.outputs:
        if out.value.producer not in seen:
            yield f"output {out.name} comes from no node"
    for call in graph.calls:
        for value in _values_in([call.results, [argument.nest for argument in call.arguments]]):
            if value.producer not in seen:
                yield f"{call.scope.path} holds %{value.name}, which comes from no node"


def _wrong_inputs(graph: tbscope.Graph, given: dict[str, Any]) -> Iterator[str]:
    """Compare the inputs of the graph with the tensors given."""
    wanted = {path: tensor_fact(tensor) for path, tensor in tensors_in(given)}
    got = {node.name: _fact(node.outputs[0]) for node in graph.nodes if node.kind == "input"}
    if got != wanted:
        yield f"inputs {_brief(list(got.items()))} instead of {_brief(list(wanted.items()))}"


def _lost_edges(graph: tbscope.Graph, verdict: Verdict, run: tuple[Any, ...]) -> Iterator[str]:
    """Compare what reaches each output with what autograd says."""
    model, args, kwargs, training = run
    try:
        dependencies = reaching(model, args, kwargs, training=training)
    except Exception as error:  # noqa: BLE001  (A model need not run with gradients.)
        verdict.unproved.append(f"edges: {type(error).__name__}: {error}"[:200])
        return
    values = _by_path(graph, [path for path, _, _ in dependencies])
    beyond: set[str] = set()
    for path, inputs, parameters in dependencies:
        if path not in values:
            yield f"output {path} is not in the graph"
            continue
        reached = _sources(values[path])
        names = {node.name for node in reached if node.kind in ("parameter", "buffer", "constant")}
        given = {node.name for node in reached if node.kind == "input"}
        yield from (f"input {name} does not reach output {path}" for name in sorted(inputs - given))
        for aliases in sorted(parameters, key=min):
            if not aliases & names:
                yield f"parameter {min(aliases)} does not reach output {path}"
        known = set().union(*parameters) if parameters else set()
        beyond |= {n.name for n in reached if n.kind == "parameter" and n.name not in known}
    known = set().union(*(aliases for _, _, found in dependencies for aliases in found), ())
    beyond -= known
    verdict.beyond = len(beyond)
    if beyond:
        some = sorted(beyond)[:: max(len(beyond) // 8, 1)]
        verdict.doubtful = idle_parameters(model, args, kwargs, some, training=training)


def _by_path(graph: tbscope.Graph, paths: list[str]) -> dict[str, tbscope.Value]:
    """Give the values of the outputs by the oracle's paths."""
    by_name = {out.name: out.value for out in graph.outputs}
    in_order = [out.value for out in graph.outputs]
    if not all((path or "out") in by_name for path in paths) and len(in_order) == len(paths):
        return dict(zip(paths, in_order, strict=True))
    return {path: by_name[path or "out"] for path in paths if (path or "out") in by_name}


def _lost_reads(graph: tbscope.Graph, verdict: Verdict, run: tuple[Any, ...]) -> Iterator[str]:
    """Compare what integer inputs reach with what moves when they change."""
    model, args, kwargs, training = run
    try:
        moved = moved_outputs(model, args, kwargs, training=training)
    except Exception as error:  # noqa: BLE001
        verdict.unproved.append(f"reads: {type(error).__name__}: {error}"[:200])
        return
    values = _by_path(graph, sorted(set().union(*moved.values()))) if moved else {}
    sources = {
        path: {node.name for node in _sources(value) if node.kind == "input"}
        for path, value in values.items()
    }
    # Python may have read a tensor and decided: then a note tells of it.
    noted = {
        node.name
        for note in graph.notes
        if note.node is not None
        for node in _before([note.node])
        if node.kind == "input"
    }
    for name, paths in moved.items():
        for path in sorted(paths):
            if path in sources and name not in sources[path] | noted:
                yield f"input {name} moves output {path} and does not reach it"


def _sources(value: tbscope.Value) -> set[tbscope.Node]:
    """Give every node from which a value can be reached."""
    return _before([value.producer])


def _before(nodes: list[tbscope.Node]) -> set[tbscope.Node]:
    """Give nodes and every node from which one of them can be reached."""
    seen = set(nodes)
    pending = list(nodes)
    while pending:
        node = pending.pop()
        for other in (*(value.producer for value in node.inputs), *node.control_inputs):
            if other not in seen:
                seen.add(other)
                pending.append(other)
    return seen


# -- conversion -----------------------------------------------------------------------------


def _wrong_conversion(graph: tbscope.Graph) -> Iterator[str]:
    """Verify and convert, with leaves as nodes and as boxes."""
    printed = str(graph)
    for leaves in ("node", "box"):
        try:
            tbscope.verify(graph)
            definition = tbscope.to_graph_def(graph, leaves=leaves)
        except Exception as error:  # noqa: BLE001
            yield f"{leaves}: {type(error).__name__}: {error}"
            continue
        names = Counter(node.name for node in definition.node)
        yield from (f"{leaves}: {n} nodes are called {name}" for name, n in names.items() if n > 1)
        for node in definition.node:
            if "_output_shapes" not in node.attr:
                yield f"{leaves}: {node.name} has no shapes"
            for text in node.input:
                name = text.removeprefix("^").rpartition(":")[0] if ":" in text else text.removeprefix("^")
                if text and name not in names:
                    yield f"{leaves}: {node.name} reads {text}, which is no node"
    if str(graph) != printed:
        yield "converting changed the graph"
