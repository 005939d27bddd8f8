"""The outline of a graph: its definitions and their uses, in words and with their types."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tbscope.collector import not_collecting
from tbscope.comparing.outline import Block, Facts, Held, Outline, Port, Ref, Step, Uncalled
from tbscope.figures.costs import graph_costs
from tbscope.functions.definition import CallStep, Definition, Given, Input, Place, Read, Use
from tbscope.functions.definition import Step as Operation
from tbscope.functions.functions import find_definitions
from tbscope.ir.graph import Argument, Call, Graph, Nest, Node, Parameter, Value, require_graph
from tbscope.ir.invariants import check_invariants
from tbscope.ir.modules import Holdings, numbers_in, parameters_in
from tbscope.ir.nests import walk
from tbscope.ir.nodes import STATE, nest_to_text, type_to_text
from tbscope.words import one_line, without_addresses

__all__ = ["Reading", "nest_text", "reading_of"]


def reading_of(graph: Graph) -> "Reading":
    """Return a graph with its outline.

    Raises:
        GraphError: The graph breaks an invariant.
    """
    require_graph(graph, "diff")
    check_invariants(graph)
    with not_collecting():
        return Reading(graph)


class Reading:
    """A graph with its outline, and what each part of the one is in the other.

    Args:
        graph: A graph that keeps the invariants; it stays as it is.

    Attributes:
        graph: The graph.
        whole: The one use of the graph itself.
        blocks: The block of each use.
        outline: The outline.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.whole = find_definitions(graph)
        self.blocks: dict[Use, Block] = {}
        self._known: dict[str, Block] = {}
        self._first = _first_calls(graph)
        self._labels: dict[Definition, list[str]] = {}
        self._types: dict[tuple[Any, str], str] = {}
        for use in _inner_first(self.whole):
            self.blocks[use] = self._block(use)
        self.outline = self._outline()

    # -- blocks -----------------------------------------------------------------------

    def _block(self, use: Use) -> Block:
        definition = use.definition
        labels = self._labels_of(definition)
        ref = _Refs(definition, labels, self._labels_of)
        steps = tuple(self._step(use, at, ref) for at in range(len(definition.steps)))
        ports = [
            Port(one.name, _port_kind(use, one), self._type(value))
            for one, value in zip(definition.inputs, use.inputs, strict=True)
            if one.kind in ("argument", "captured")
        ]
        told = _Texts(ref)
        results = ", ".join(
            f"{name}={told.text(nest)}".lstrip("=") for name, nest in _results(definition).items()
        )
        block = Block(
            use.calls[0].scope.part.label if use.calls else "graph",
            definition.class_name,
            _signature_facts(definition),
            _constants(definition),
            self._state(use),
            tuple(ports),
            steps,
            results,
            tuple(told.refs),
            self._is_again(use),
        )
        known = self._known.setdefault(block.digest, block)
        known.settle()
        return known

    def _step(self, use: Use, at: int, ref: "_Refs") -> Step:
        step, part = use.definition.steps[at], use.parts[at]
        label = self._labels_of(use.definition)[at]
        place = "/".join(
            map(_place_text, step.places[: -1 if isinstance(step, CallStep) else None])
        )
        if isinstance(step, CallStep):
            assert isinstance(part, Use), "a call is a use"
            wanted = [
                (one.name, ref(inner), self._type(value))
                for one, inner, value in zip(
                    step.definition.inputs, step.inputs, part.inputs, strict=True
                )
                # Its own parameters are told by the block, and ties by the outline.
                if one.kind not in STATE
            ]
            return Step(
                label,
                step.places[-1].label,
                place,
                self.blocks[part],
                _place_facts(step.places[-1]),
                reads=tuple(one for _, one, _ in wanted),
                ports=tuple(name for name, _, _ in wanted),
                took=tuple(kind for _, _, kind in wanted),
                gives=tuple(self._type(part.value(given)) for given in step.definition.given),
            )
        assert isinstance(part, Node), "an operation is a node"
        reads = tuple(map(ref, step.inputs))
        numbers = {inner: number for number, inner in reversed(list(enumerate(step.inputs)))}
        told = _Texts(ref, numbers)
        facts = {
            "writes": str([*step.writes]) if step.writes else "",
            "random": "True" if step.random else "",
            "phase": step.phase if step.phase != "forward" else "",
            "kind": step.kind if step.kind != "op" else "",
        }
        own = {f"attribute {name}": told.text(nest) for name, nest in step.attributes.items()}
        return Step(
            label,
            step.op,
            place,
            None,
            (*((name, text) for name, text in facts.items() if text), *sorted(own.items())),
            tuple(
                (name or told_name, told.text(nest))
                for (name, nest), told_name in zip(step.arguments, self._names(step), strict=True)
            ),
            reads,
            took=tuple(map(self._type, part.inputs)),
            gives=tuple(map(self._type, part.outputs)),
        )

    def _names(self, step: Operation) -> list[str]:
        """Return the names of an operation's arguments by position, as far as they are known."""
        names = [name or "" for name in self.graph.signatures.get(step.op, ())]
        return [*names, *[""] * len(step.arguments)][: len(step.arguments)]

    def _labels_of(self, definition: Definition) -> list[str]:
        """Return the label of each step of a definition, none of them twice."""
        known = self._labels.get(definition)
        if known is None:
            taken: dict[str, int] = {}
            known = self._labels[definition] = []
            for step in definition.steps:
                names = [place.attribute or place.label for place in step.places]
                if isinstance(step, CallStep):
                    label = ".".join(names)
                    if step.places[-1].number:
                        label = f"{label}.{step.places[-1].number}"
                else:
                    label = ".".join([*names, f"{step.op}()"])
                times = taken[label] = taken.get(label, 0) + 1
                known.append(label if times == 1 else f"{label}~{times}")
        return known

    def _state(self, use: Use) -> tuple[Held, ...]:
        if not use.calls or self._is_again(use):
            return ()
        return tuple(map(self._held, use.call.parameters))

    def _is_again(self, use: Use) -> bool:
        """Tell whether a module was called before: what it owns is told of its first call."""
        return (
            bool(use.calls) and self._first.get(use.call.qualified_name, use.call) is not use.call
        )

    def _held(self, held: Parameter) -> Held:
        return Held(held.name, held.kind, self._type(held), held.requires_grad, numbers_in(held))

    def _type(self, typed: Value | Parameter) -> str:
        key = typed.shape, typed.dtype
        known = self._types.get(key)
        if known is None:
            known = self._types[key] = type_to_text(typed, device=False)
        return known

    # -- the whole --------------------------------------------------------------------

    def _outline(self) -> Outline:
        graph = self.graph
        main = self.blocks[self.whole]
        return Outline(
            graph.name,
            main,
            tuple(output.name for output in graph.outputs),
            tuple(self._type(output.value) for output in graph.outputs),
            tuple(self._uncalled()),
            _ties(graph),
            self._totals(),
        )

    def _uncalled(self) -> Iterable[Uncalled]:
        """Return the modules in which nothing ran, and those with parameters that no call has.

        Of modules in which nothing ran, those inside of another one stand in it.
        """
        called = {call.qualified_name for call in self.graph.calls}
        used = {""}
        for scope in self.graph.scopes():
            name = scope.qualified_name
            while name and name not in used:
                used.add(name)
                name = name.rpartition(".")[0]
        for module in self.graph.modules:
            above = module.name.rpartition(".")[0]
            first = module.name not in used and above in used
            if module.name not in called and (first or module.parameters):
                state = tuple(map(self._held, module.parameters))
                yield Uncalled(module.name, module.class_name, state)

    def _totals(self) -> dict[str, int]:
        graph = self.graph
        costs = graph_costs(graph, backward=False)
        held = Holdings()
        for parameter in parameters_in(graph).values():
            held.add(parameter)
        return {
            "parameters": held.parameters,
            "trainable_parameters": held.trainable,
            "parameter_bytes": held.parameter_bytes,
            "flops": costs.flops,
            "activation_bytes": costs.activation_bytes,
            "operations": costs.operations,
            "calls": costs.calls,
        }


class _Refs:
    """Turns a ref of a definition into one of its block."""

    def __init__(
        self,
        definition: Definition,
        labels: list[str],
        labels_of: Callable[[Definition], list[str]],
    ) -> None:
        self._definition = definition
        self._labels = labels
        self._labels_of = labels_of

    def __call__(self, ref: Read | Given) -> Ref:
        definition = self._definition
        if isinstance(ref, Read):
            one = definition.inputs[ref.place]
            role = "state" if one.kind in STATE else "in"
            return Ref(one.name, role=role)
        inner: list[str] = []
        for place, at in zip(ref.path, ref.path[1:], strict=False):
            step = definition.steps[place]
            assert isinstance(step, CallStep), "the way leads through calls"
            definition = step.definition
            inner.append(self._labels_of(definition)[at])
        return Ref(self._labels[ref.path[0]], tuple(inner), ref.output)


class _Texts:
    """Writes nests, with a number for each tensor in them.

    Args:
        ref: Names what a block reads.
        numbers: The numbers of the tensors; None to number them on, and keep them in `refs`.
    """

    def __init__(self, ref: _Refs, numbers: Mapping[Read | Given, int] | None = None) -> None:
        self._ref = ref
        self._numbers = numbers
        self.refs: list[Ref] = []

    def text(self, nest: Nest) -> str:
        """Return a nest as text."""
        return nest_text(nest, self._tensor)

    def _tensor(self, ref: Read | Given) -> str:
        if self._numbers is not None:
            return f"%{self._numbers.get(ref, self._ref(ref))}"
        self.refs.append(self._ref(ref))
        return f"%{len(self.refs) - 1}"


def nest_text(nest: Nest, tensor: Callable[[Any], str]) -> str:
    """Return a nest as Python writes it, in a way that is the same in every process."""

    def entry(one: Nest) -> str:
        return tensor(one) if type(one) in (Read, Given) else one_line(without_addresses(repr(one)))

    return nest_to_text(nest, entry)


def _results(definition: Definition) -> dict[str, Nest]:
    if definition.signatures:
        return {
            "" if not number else f"run {one.number}": one.results
            for number, one in enumerate(definition.signatures)
        }
    results: dict[str, Nest] = definition.results
    return results


def _signature_facts(definition: Definition) -> Facts:
    facts: dict[str, str] = {}
    for number, one in enumerate(definition.signatures):
        again = f" (run {one.number})" if number else ""
        told = {name: nest_text(nest, str) for name, nest in one.hyperparameters.items()}
        told["training"] = str(one.training)
        facts.update({f"{name}{again}": text for name, text in told.items()})
    return tuple(sorted(facts.items()))


def _constants(definition: Definition) -> Facts:
    """Return the constants among the arguments of a call, and which tensor stands where."""
    found: dict[str, str] = {}
    for number, one in enumerate(definition.signatures):
        again = f" (run {one.number})" if number else ""
        for at, argument in enumerate(one.arguments):
            found.update(_argument(argument, at, again))
    return tuple(found.items())


def _argument(argument: Argument, at: int, again: str) -> Iterable[tuple[str, str]]:
    name = argument.name or str(at)

    def told(ref: Read | Given) -> str:
        # What a hook in the call made is none of its inputs.
        return "%" if isinstance(ref, Read) else "%made"

    entries = list(walk(argument.nest, name))
    if any(isinstance(entry, Read) for _, entry in entries):
        for path, entry in entries:
            if not isinstance(entry, Read):
                yield f"{path}{again}", nest_text(entry, told)
    else:
        yield f"{name}{again}", nest_text(argument.nest, told)


def _port_kind(use: Use, one: Input) -> str:
    return "input" if not use.calls and one.kind == "argument" else one.kind


def _place_text(place: Place) -> str:
    kind = "" if place.kind in ("module", "container") else f"{place.kind} "
    number = f".{place.number}" if place.number else ""
    name = "" if place.attribute is None else f"[{place.attribute}]"
    return f"{kind}{place.label}{name}{number}"


def _place_facts(place: Place) -> Facts:
    return () if place.phase == "forward" else (("phase", place.phase),)


def _first_calls(graph: Graph) -> dict[str | None, Call]:
    found: dict[str | None, Call] = {}
    for call in graph.calls:
        if call.qualified_name is not None:
            found.setdefault(call.qualified_name, call)
    return found


def _ties(graph: Graph) -> tuple[tuple[str, ...], ...]:
    names: dict[int, dict[str, None]] = {}
    for module in graph.modules:
        for held in module.parameters:
            if held.number >= 0:
                name = f"{module.name}.{held.name}".lstrip(".")
                names.setdefault(held.number, {})[name] = None
    return tuple(tuple(several) for several in names.values() if len(several) > 1)


def _inner_first(whole: Use) -> list[Use]:
    found: list[Use] = []
    pending = [whole]
    while pending:
        use = pending.pop()
        found.append(use)
        pending += [part for part in use.parts if isinstance(part, Use)]
    return found[::-1]
