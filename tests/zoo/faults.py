"""What can be wrong with a graph: one generator of reasons for each kind of fault."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import tbscope
from tbscope.ir.graph import Node, Value
from tests.card_facts import facts
from tests.zoo.dependencies import Dependency
from tests.zoo.oracles import RunFacts, tensor_fact, tensors_in

# -- calls and scopes -----------------------------------------------------------------------


def wrong_calls(graph: tbscope.Graph, facts: RunFacts) -> Iterator[str]:
    """Compare number, order, names and classes of the calls."""
    if len(graph.calls) != len(facts.calls):
        yield f"{len(graph.calls)} calls instead of {len(facts.calls)}"
    for place, (call, fact) in enumerate(zip(graph.calls, facts.calls, strict=False)):
        if call.qualified_name != fact.name:
            yield f"call {place} is of {call.qualified_name!r} instead of {fact.name!r}"
        if call.class_name.rpartition(".")[2] != fact.class_name:
            yield f"call {place} ({fact.name}) is of class {call.class_name}"


def wrong_scopes(graph: tbscope.Graph, facts: RunFacts, model: Any) -> Iterator[str]:
    """Compare the scopes of the calls with `named_modules()`, and look for more scopes."""
    scopes = [call.scope for call in graph.calls]
    if len(set(scopes)) != len(scopes):
        yield f"{len(scopes) - len(set(scopes))} calls share a scope with another"
    paths = Counter(scope.path for scope in graph.scopes())
    yield from (
        f"{count} scopes have the path {path}" for path, count in paths.items() if count > 1
    )
    yield from (
        f"the scope of {fact.name!r} is {scope.path}"
        for scope, fact in zip(scopes, facts.calls, strict=True)
        if fact.name is not None and _steps(scope) != fact.steps
    )
    yield from _empty_scopes(graph, facts)
    called = set(scopes)
    known = (
        {name for name, _ in model.named_modules()} if hasattr(model, "named_modules") else set()
    )
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


def wrong_operations(graph: tbscope.Graph, facts: RunFacts) -> Iterator[str]:
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
            operations.subtract(moved)
            lost[above] = lost.get(above, Counter()) - moved
    for text, found in (("lost", lost), ("made up", more)):
        for scope, operations in found.items():
            if +operations:
                names = ", ".join(f"{n} {name}" for name, n in (+operations).items())
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


def _fact(value: Value) -> tuple[Any, str]:
    return value.shape, value.dtype


def wrong_values(graph: tbscope.Graph) -> Iterator[str]:
    for node in graph.nodes:
        for value in node.outputs:
            if value.shape is None or None in value.shape or not value.dtype:
                yield f"%{value.name} of {node.op} has shape {value.shape}, dtype {value.dtype!r}"


def wrong_outputs(graph: tbscope.Graph, facts: RunFacts) -> Iterator[str]:
    got = [(out.name, _fact(out.value)) for out in graph.outputs]
    if Counter(fact for _, fact in got) != Counter(fact for _, fact in facts.outputs):
        yield f"outputs {_brief(got)} instead of {_brief(facts.outputs)}"
    elif [name for name, _ in got] != [name for name, _ in facts.outputs]:
        if _heads(facts) - {name for name, _ in got}:
            yield f"outputs are called {_brief(got)} instead of {_brief(facts.outputs)}"
    else:
        yield from (
            f"output {one[0]} is {one[1]} instead of {two[1]}"
            for one, two in zip(got, facts.outputs, strict=True)
            if one[1] != two[1]
        )


def _heads(facts: RunFacts) -> set[str]:
    """Give the names of what holds a tensor directly: a key, or a place of a plain tuple."""
    return {name for name, _ in facts.outputs if "." not in name.removeprefix("out.")}


def _brief(found: list[tuple[str, Any]]) -> str:
    text = ", ".join(f"{name}{fact[0]}{fact[1]}" for name, fact in found[:6])
    return f"[{text}{', …' if len(found) > 6 else ''}] ({len(found)})"


def wrong_flops(graph: tbscope.Graph, counted: int) -> Iterator[str]:
    """Compare the FLOPs of all operations with what torch counted."""
    flops = tbscope.costs(graph).total.flops
    if flops != counted:
        yield f"{flops} FLOPs where torch counts {counted}"
    raised = [f"{name}: {why}" for name, why in graph.uncounted.items() if "raised" in why]
    if raised:
        yield f"no FLOPs of {raised[0]}"


def wrong_results(graph: tbscope.Graph, facts: RunFacts) -> Iterator[str]:
    for call, fact in zip(graph.calls, facts.calls, strict=True):
        got = [_fact(value) for value in _values_in(call.results)]
        if Counter(fact.results) - Counter(got):  # A cache may be opened, and need not be.
            yield f"{call.scope.path} gave {got[:4]} instead of {fact.results[:4]}"


def _values_in(nest: Any) -> Iterator[Value]:
    if isinstance(nest, Value):
        yield nest
    elif isinstance(nest, dict):
        for entry in nest.values():
            yield from _values_in(entry)
    elif isinstance(nest, list | tuple):
        for entry in nest:
            yield from _values_in(entry)


# -- edges ----------------------------------------------------------------------------------


def dangling_edges(graph: tbscope.Graph) -> Iterator[str]:
    """Look for edges that end nowhere or run backwards."""
    seen: set[Node] = set()
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


def wrong_inputs(graph: tbscope.Graph, given: dict[str, Any]) -> Iterator[str]:
    """Compare the inputs of the graph with the tensors given."""
    wanted = {path: tensor_fact(tensor) for path, tensor in tensors_in(given)}
    got = {node.name: _fact(node.outputs[0]) for node in graph.nodes if node.kind == "input"}
    if got != wanted:
        yield f"inputs {_brief(list(got.items()))} instead of {_brief(list(wanted.items()))}"


def lost_edges(graph: tbscope.Graph, dependencies: list[Dependency]) -> Iterator[str]:
    """Compare what reaches each output with what autograd says."""
    values = _by_path(graph, [dependency.output for dependency in dependencies])
    for dependency in dependencies:
        path = dependency.output
        if path not in values:
            yield f"output {path} is not in the graph"
            continue
        reached = _sources(values[path])
        names = {node.name for node in reached if node.kind != "op"}
        given = {node.name for node in reached if node.kind == "input"}
        for name in sorted(dependency.inputs - given):
            yield f"input {name} does not reach output {path}"
        for aliases in sorted(dependency.parameters, key=min):
            if not aliases & names:
                yield f"parameter {min(aliases)} does not reach output {path}"


def parameters_beyond(graph: tbscope.Graph, dependencies: list[Dependency]) -> list[str]:
    """Give the parameters that reach an output in the graph and none in autograd's."""
    known: set[str] = set()
    for dependency in dependencies:
        known = known.union(*dependency.parameters)
    reached = _before([out.value.producer for out in graph.outputs])
    return sorted({n.name for n in reached if n.kind == "parameter" and n.name not in known})


def _by_path(graph: tbscope.Graph, paths: list[str]) -> dict[str, Value]:
    """Give the values of the outputs by the oracle's paths."""
    by_name = {out.name: out.value for out in graph.outputs}
    in_order = [out.value for out in graph.outputs]
    if not all(path in by_name for path in paths) and len(in_order) == len(paths):
        return dict(zip(paths, in_order, strict=True))
    return {path: by_name[path] for path in paths if path in by_name}


def lost_reads(graph: tbscope.Graph, moved: dict[str, set[str]]) -> Iterator[str]:
    """Compare what integer inputs reach with what moves when they change."""
    values = _by_path(graph, sorted(set().union(*moved.values())))
    sources = {
        path: {node.name for node in _sources(value) if node.kind == "input"}
        for path, value in values.items()
    }
    # Python may have read a tensor and decided: then the node that gave it tells so.
    noted = {
        node.name
        for read in graph.nodes
        if "read_by_python" in read.attributes
        for node in _before([read])
        if node.kind == "input"
    }
    for name, paths in moved.items():
        for path in sorted(paths):
            if path in sources and name not in sources[path] | noted:
                yield f"input {name} moves output {path} and does not reach it"


def _sources(value: Value) -> set[Node]:
    """Give every node from which a value can be reached."""
    return _before([value.producer])


def _before(nodes: list[Node]) -> set[Node]:
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


def wrong_conversion(graph: tbscope.Graph) -> Iterator[str]:
    """Verify and convert, with leaves as nodes and as boxes, and compare what reaches what."""
    printed = str(graph)
    for leaves in ("node", "box"):
        try:
            graph.verify()
            definition = tbscope.to_graph_def(graph, leaves=leaves)
            again = tbscope.to_graph_def(graph, leaves=leaves)
        except Exception as error:  # noqa: BLE001
            yield f"{leaves}: {type(error).__name__}: {error}"
            continue
        yield from (f"{leaves}: {reason}" for reason in _wrong_definition(graph, definition))
        if definition.SerializeToString(deterministic=True) != again.SerializeToString(
            deterministic=True
        ):
            yield f"{leaves}: converted twice, it differs"
    if str(graph) != printed:
        yield "converting changed the graph"


_LEGAL_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
# An entry of the legend may have blanks behind it, for which the page writes smaller.
_LEGEND = re.compile(r"__function_library__([^ /]+) *(?=/|\Z)")


def _wrong_definition(graph: tbscope.Graph, definition: Any) -> Iterator[str]:
    """Look for what TensorBoard could not draw, and for edges lost or made up on the way."""
    inputs = {node.name: [text for text in node.input if text] for node in definition.node}
    names = Counter(node.name for node in definition.node)
    # A module that gives no tensor has no shapes.
    bare = {node.op for node in graph.nodes if not node.outputs}
    yield from (f"{n} nodes are called {name}" for name, n in names.items() if n > 1)
    for node in definition.node:
        # The page takes what begins so for no part of the graph.
        seeded = node.name.startswith("__function_library__")
        if not _LEGAL_NAME.fullmatch(_LEGEND.sub(r"\1", node.name, count=1)):
            yield f"{node.name!r} is no legal name"
        shaped = "_output_shapes" in node.attr or node.op in bare
        if not shaped and not seeded and node.op != "NoOp":
            yield f"{node.name} has no shapes"
        for text in inputs[node.name]:
            if _producer(text) not in names:
                yield f"{node.name} reads {text}, which is no node"
    # The outputs come in their order, and so do the inputs.
    outputs = [node.name for node in definition.node if node.op.partition("[")[0] == "Output"]
    given = [node.name for node in definition.node if node.op.partition("[")[0] == "Input"]
    if len(outputs) != len(graph.outputs) or len(given) != len(graph.inputs):
        yield f"{len(given)} inputs and {len(outputs)} outputs"
        return
    called = dict(zip(given, (node.name for node in graph.inputs), strict=True))
    for name, out in zip(outputs, graph.outputs, strict=True):
        seen = {name}
        pending = [name]
        while pending:
            for text in inputs.get(pending.pop(), ()):
                producer = _producer(text)
                if producer not in seen:
                    seen.add(producer)
                    pending.append(producer)
        reached = {node.name for node in _sources(out.value) if node.kind == "input"}
        if {called[producer] for producer in seen if producer in called} != reached:
            yield f"other inputs reach output {out.name} than before"
        owned = {n.name for n in _sources(out.value) if n.kind == "parameter"}
        now = {
            facts(node)[key].s.decode()
            for node in definition.node
            if node.name in seen and node.op in ("Parameter", "ParameterConst")
            # A tied one stands beside each reader, under its name there.
            for key in ("name", "tied_to")
            if key in facts(node)
        }
        yield from (f"parameter {name} no more reaches {out.name}" for name in sorted(owned - now))


def _producer(text: str) -> str:
    """Give the node that an input of a GraphDef names."""
    name, _, index = text.removeprefix("^").rpartition(":")
    return name if index.isdigit() and name else text.removeprefix("^")
