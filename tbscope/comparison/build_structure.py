"""Construction of outlines: the definitions of a graph and their uses, as text with types."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import zip_longest
from typing import Any

from tbscope.analysis.costs import costs
from tbscope.comparison.structure import Block, BlockStep, Held, Outline, Port, Ref, Uncalled
from tbscope.functions.definition import CallStep, Definition, Given, Place, Read, Use
from tbscope.functions.definition import Step as Operation
from tbscope.functions.functions import find_definitions
from tbscope.ir.graph import Graph, Nest, Node, Parameter, Value
from tbscope.ir.invariants import check_invariants
from tbscope.ir.module_tree import ParameterTotals, numel_of, parameters_in
from tbscope.ir.nodes import STATE, nest_to_text, type_to_text
from tbscope.ir.pytree import walk
from tbscope.messages import one_line, without_addresses
from tbscope.utils.components import inner_first
from tbscope.utils.gc_pause import not_collecting

# Inputs of the graph itself are not arguments of a call.
_OF_GRAPH = {"argument": "input", "captured": "captured"}
# Settings of an operation that are not listed.
_USUAL = (("writes", "[]"), ("random", "False"), ("phase", "forward"), ("kind", "op"))


def outlined(graph: Graph) -> "OutlinedGraph":
    """Return the outline of a graph, together with the graph.

    Raises:
        GraphError: The graph breaks an invariant.
    """
    check_invariants(graph)
    with not_collecting():
        return OutlinedGraph(graph)


class OutlinedGraph:
    """A graph and its outline.

    Args:
        graph: A graph that satisfies the invariants; it is not changed.

    Attributes:
        graph: The graph.
        whole: The use that is the graph itself, the root of all uses.
        outline: The outline.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.whole = find_definitions(graph)[None]
        self._blocks: dict[Use, Block] = {}
        # The first block of each digest.
        self._known: dict[str, Block] = {}
        # Only the block of a module's first call lists the parameters and buffers of the module.
        self._first = {call.qualified_name: call for call in reversed(graph.calls)}
        self._labels_of = cache(_labels)
        for use in inner_first(self.whole, _uses_in):
            block = self._block(use)
            self._blocks[use] = self._known.setdefault(block.digest, block)
        self.outline = Outline(
            graph.name,
            self._blocks[self.whole],
            tuple(output.name for output in graph.outputs),
            tuple(_type(output.value) for output in graph.outputs),
            tuple(self._uncalled()),
            _ties(graph),
            _totals(graph),
        )

    # -- blocks -----------------------------------------------------------------------

    def _block(self, use: Use) -> Block:
        definition = use.definition
        steps = tuple(self._step(use, at) for at in range(len(definition.steps)))
        refs: list[Ref] = []

        def number(ref: Read | Given) -> str:
            refs.append(self._ref(definition, ref))
            return f"%{len(refs) - 1}"

        settings = {name: _nest_text(it) for name, it in definition.hyperparameters.items()}
        state: tuple[Held, ...] = ()
        again = False
        if use.calls:
            call = use.call
            label, results = call.scope.part.label, _nest_text(definition.results, number)
            settings["training"] = str(call.training)
            again = call.qualified_name is not None and self._first[call.qualified_name] is not call
            state = () if again else tuple(map(_held, call.parameters))
        else:
            label = "graph"
            results = ", ".join(f"{name}={number(ref)}" for name, ref in definition.results.items())
        ports = (
            Port(port.name, port.kind if use.calls else _OF_GRAPH[port.kind], _type(value))
            for port, value in zip(definition.inputs, use.inputs, strict=True)
            if port.kind not in STATE
        )
        return Block(
            label,
            definition.class_name,
            tuple(sorted(settings.items())),
            tuple(_constants(definition)),
            state,
            again,
            tuple(ports),
            steps,
            results,
            tuple(refs),
        )

    def _step(self, use: Use, at: int) -> BlockStep:
        step, part = use.definition.steps[at], use.parts[at]
        label = self._labels_of(use.definition)[at]
        if isinstance(step, CallStep):
            assert isinstance(part, Use), "a call is a use"
            *outer_places, own = step.places
            block = self._blocks[part]
            inputs = zip(step.definition.inputs, step.inputs, strict=True)
            return BlockStep(
                label,
                own.label,
                block,
                "/".join(map(_place_text, outer_places)),
                () if own.phase == "forward" else (("phase", own.phase),),
                # The called block lists its own parameters, and the outline lists tied ones.
                reads=tuple(
                    self._ref(use.definition, ref) for port, ref in inputs if port.kind not in STATE
                ),
                ports=tuple(port.name for port in block.inputs),
                takes=tuple(port.type for port in block.inputs),
                gives=tuple(_type(part.value(result)) for result in step.definition.given),
            )
        assert isinstance(part, Node), "an operation is a node"
        numbers = {ref: number for number, ref in reversed([*enumerate(step.inputs)])}

        def number(ref: Read | Given) -> str:
            return f"%{numbers.get(ref, self._ref(use.definition, ref))}"

        settings = (
            ("writes", str([*step.writes])),
            ("random", str(step.random)),
            ("phase", step.phase),
            ("kind", step.kind),
        )
        attrs = {
            f"attribute {name}": _nest_text(it, number) for name, it in step.attributes.items()
        }
        # Parameter names of positional arguments, from the signatures that the graph contains.
        names = self.graph.signatures.get(step.op, ())
        arguments = zip_longest(step.arguments, names[: len(step.arguments)])
        return BlockStep(
            label,
            step.op,
            None,
            "/".join(map(_place_text, step.places)),
            (*(setting for setting in settings if setting not in _USUAL), *sorted(attrs.items())),
            tuple((name or known or "", _nest_text(it, number)) for (name, it), known in arguments),
            tuple(self._ref(use.definition, ref) for ref in step.inputs),
            takes=tuple(map(_type, part.inputs)),
            gives=tuple(map(_type, part.outputs)),
        )

    def _ref(self, definition: Definition, ref: Read | Given) -> Ref:
        """Return the block's `Ref` for a ref of the block's definition."""
        if isinstance(ref, Read):
            port = definition.inputs[ref.place]
            return Ref(port.name, role="state" if port.kind in STATE else "in")
        labels: list[str] = []
        for at in ref.path:
            labels.append(self._labels_of(definition)[at])
            step = definition.steps[at]
            if isinstance(step, CallStep):
                definition = step.definition
        return Ref(labels[0], tuple(labels[1:]), ref.output)

    # -- the graph -----------------------------------------------------------------------

    def _uncalled(self) -> Iterator[Uncalled]:
        """Yield modules in which nothing ran, and modules with parameters but without a call.

        Of nested modules in which nothing ran, only the outermost one and those with parameters of
        their own are yielded.
        """
        called = {call.qualified_name for call in self.graph.calls}
        used = {""}
        for scope in self.graph.scopes():
            name = scope.qualified_name
            while name and name not in used:
                used.add(name)
                name = name.rpartition(".")[0]
        for module in self.graph.modules:
            first = module.name not in used and module.name.rpartition(".")[0] in used
            if module.name not in called and (first or module.parameters):
                yield Uncalled(module.name, module.class_name, tuple(map(_held, module.parameters)))


def _labels(definition: Definition) -> list[str]:
    """Return the labels of a definition's steps; each label is unique in the definition."""
    taken: Counter[str] = Counter()
    labels = []
    for step in definition.steps:
        label = ".".join(place.attribute or place.label for place in step.places)
        if isinstance(step, Operation):
            label = f"{label}.{step.op}()".lstrip(".")
        elif step.places[-1].number:
            label = f"{label}.{step.places[-1].number}"
        taken[label] += 1
        labels.append(label if taken[label] == 1 else f"{label}~{taken[label]}")
    return labels


def _totals(graph: Graph) -> dict[str, int]:
    total = costs(graph, backward=False).total
    totals = ParameterTotals()
    for parameter in parameters_in(graph).values():
        totals.add(parameter)
    return {
        "parameters": totals.parameters,
        "trainable_parameters": totals.trainable,
        "parameter_bytes": totals.parameter_bytes,
        "flops": total.flops,
        "activation_bytes": total.activation_bytes,
        "operations": total.operations,
        "calls": total.calls,
    }


def _ties(graph: Graph) -> tuple[tuple[str, ...], ...]:
    names: dict[int, dict[str, None]] = {}
    for module in graph.modules:
        for parameter in module.parameters:
            if parameter.number >= 0:
                name = f"{module.name}.{parameter.name}".lstrip(".")
                names.setdefault(parameter.number, {})[name] = None
    return tuple(tuple(tied) for tied in names.values() if len(tied) > 1)


def _uses_in(use: Use) -> Iterator[Use]:
    return (part for part in use.parts if isinstance(part, Use))


def _type(typed: Value | Parameter) -> str:
    return type_to_text(typed, device=False)


def _held(parameter: Parameter) -> Held:
    return Held(
        parameter.name,
        parameter.kind,
        _type(parameter),
        parameter.requires_grad,
        numel_of(parameter),
    )


def _nest_text(nest: Nest, tensor: Callable[[Any], str] = str) -> str:
    """Return a pytree as Python source text, equal in all processes: without memory addresses."""

    def entry(leaf: Nest) -> str:
        return (
            tensor(leaf) if type(leaf) in (Read, Given) else one_line(without_addresses(repr(leaf)))
        )

    return nest_to_text(nest, entry)


def _constants(definition: Definition) -> Iterator[tuple[str, str]]:
    """Yield the constants among the arguments of a call, each with its path.

    A tensor that was created by a hook inside of the call is no input of the definition; its text
    is `%made`.
    """
    for at, (name, nest) in enumerate(definition.arguments):
        entries = list(walk(nest, name or str(at)))
        if not any(isinstance(entry, Read) for _, entry in entries):
            entries = [(name or str(at), nest)]
        for path, entry in entries:
            if not isinstance(entry, Read):
                yield path, _nest_text(entry, lambda _: "%made")


def _place_text(place: Place) -> str:
    kind = "" if place.kind in ("module", "container") else f"{place.kind} "
    number = f".{place.number}" if place.number else ""
    name = "" if place.attribute is None else f"[{place.attribute}]"
    return f"{kind}{place.label}{name}{number}"
