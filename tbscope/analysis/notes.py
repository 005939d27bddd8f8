"""Notes: what a run tells that no drawing shows, found in the finished graph.

What Python read, what was given and not used, what is random, what FLOPs leave out: few
sentences, however large the model.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from tbscope.ir.graph import Graph, Module, Node, Note, Parameter, Source, Value
from tbscope.ir.module_tree import numbers_in
from tbscope.ir.scope_io import STATE, with_above
from tbscope.messages import first_of

__all__ = ["Read", "find_notes"]

# What would be more notes of one kind is told as a number.
_MOST_NOTES = 20
_MOST_NAMED = 6
# What runs inside of a scripted module is seen, but not in which part of it.
_SCRIPTED = "torch.jit."

_DECIDES = frozenset({"bool", "is_nonzero", "equal", "allclose"})
# What Python calls for `range(x)` and for `numpy.asarray(x)`.
_PROTOCOLS = {"index": "__index__", "array": "__array__"}

# A step of a path that is a number, or ends in one after `_`.
_NUMBER = re.compile(r"(?<![^._])[0-9]+(?![^.])")


class Read(NamedTuple):
    """One time that Python read the content of a tensor.

    Attributes:
        value: What it held.
        by: What read it: `bool`, `item`, `tolist`.
        source: Where in the user's code; None where that is not known.
    """

    value: Value
    by: str
    source: Source | None


def find_notes(
    graph: Graph, *, reads: Iterable[Read], whole: bool, stood_in: Set[int] = frozenset()
) -> list[Note]:
    """Return the notes of a run that is over, the most important first.

    Args:
        graph: Its graph.
        reads: What Python read of its tensors.
        whole: Whether it ran to its end: of one that did not, nobody knows what it would have
            used.
        stood_in: The numbers of the parameters in whose place others were used.
    """
    unused = [*_input_notes(graph), *_unused_notes(graph, stood_in)] if whole else []
    notes = [*_read_notes(reads), *unused]
    drawn = Counter([node.op for node in graph.nodes if node.random])
    if drawn:
        notes.append(Note(f"random numbers were drawn by {_counted(drawn)}", topic="random"))
    return [*notes, *_flops_notes(graph)]


# -- what Python read ----------------------------------------------------------------------


def _read_notes(reads: Iterable[Read]) -> Iterator[Note]:
    """Return one note for each line of code that reads tensors, however often it does."""
    lines: dict[tuple[str, object], list[Read]] = {}
    for read in reads:
        # Of what has no line it is told by the operation that gave it.
        line: object = read.source or read.value.producer.op
        lines.setdefault((read.by, line), []).append(read)
    for (by, _), group in lines.items():
        first = group[0]
        node = first.value.producer
        more = len({read.value for read in group}) - 1
        times = f", {len(group):,} times," if len(group) > 1 else ""
        also = f" and of {more:,} more" if more else times
        verb = "decided on" if by in _DECIDES else "read"
        what = f"%{first.value.name} ({node.op}){also}"
        text = f"Python {verb} the value of {what} by {_PROTOCOLS.get(by, by)}()"
        yield Note(text, first.source, node, "python")


# -- what was not used ---------------------------------------------------------------------


def _input_notes(graph: Graph) -> Iterator[Note]:
    read = {value for node in graph.nodes for value in node.inputs}
    read.update(output.value for output in graph.outputs)
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in graph.inputs:
        if "read_by_python" not in node.attributes and not read.issuperset(node.outputs):
            groups[_pattern(node.name)].append(node)
    for pattern, nodes in groups.items():
        if len(nodes) == 1:
            yield Note(f"no operation reads the input {nodes[0].name}", None, nodes[0], "unused")
        else:
            yield Note(f"no operation reads the {len(nodes):,} inputs {pattern}", topic="unused")


def _unused_notes(graph: Graph, stood_in: Set[int]) -> list[Note]:
    """Tell of modules in which nothing ran, and of parameters that nothing read."""
    scopes = (*{node.scope for node in graph.nodes}, *[call.scope for call in graph.calls])
    ran = {scope.qualified_name for scope in with_above(scopes)}
    idle: set[str] = set()
    for module in graph.modules:
        numbers = {parameter.number for parameter in module.parameters}
        # Others may have been used in the place of all that it holds.
        if module.name not in ran and not (numbers and numbers <= stood_in):
            idle.add(module.name)
    names = {node.name for node in graph.nodes if node.kind in STATE}
    # One that is named like an input has a number to its name.
    read = names.union([name.partition("~")[0] for name in names if "~" in name])
    used: set[int] = set()
    unread: list[tuple[Module, str, Parameter]] = []
    for module in graph.modules:
        prefix = f"{module.name}." if module.name else ""
        for parameter in module.parameters:
            name = prefix + parameter.name
            if name in read or parameter.number in stood_in:
                used.add(parameter.number)
            else:
                unread.append((module, name, parameter))
    notes = _idle_notes(graph, idle, used)
    notes += _parameter_notes(
        (name, parameter)
        for module, name, parameter in unread
        if module.name not in idle
        and parameter.kind == "parameter"
        and parameter.number not in used
    )
    return notes


def _idle_notes(graph: Graph, idle: set[str], used: set[int]) -> list[Note]:
    """Tell of the outermost modules in which nothing ran, alike ones together."""
    groups: dict[tuple[str, str], _Idle] = {}
    group, seen = _Idle(""), set(used)
    for module in graph.modules:
        if module.name not in idle or module.class_name.startswith(_SCRIPTED):
            continue
        # What is in a module follows it.
        if not module.name or module.name.rpartition(".")[0] not in idle:
            label = module.class_name.rpartition(".")[2]
            group = groups.setdefault((_pattern(module.name), label), _Idle(label))
            group.names.append(module.name)
        for parameter in module.parameters:
            if parameter.kind == "parameter" and parameter.number not in seen:
                seen.add(parameter.number)
                group.parameters += numbers_in(parameter)
    ordered = sorted(groups.values(), key=lambda one: -one.parameters)
    notes = [Note(one.text(), topic="unused") for one in ordered if one.parameters]
    empty = [one for one in groups.values() if not one.parameters]
    if empty:
        total = sum(len(one.names) for one in empty)
        what = "a module" if total == 1 else f"{total:,} modules"
        named = first_of([one.title() for one in empty], _MOST_NAMED)
        notes.append(Note(f"nothing ran in {what} without parameters: {named}", topic="unused"))
    return _few(notes, "modules in which nothing ran")


@dataclass
class _Idle:
    """Modules of one class in which nothing ran, with the parameters in them."""

    label: str
    names: list[str] = field(default_factory=list)
    parameters: int = 0

    def title(self) -> str:
        name = self.names[0] if len(self.names) == 1 else _pattern(self.names[0])
        return f"{name} ({self.label})" if name else self.label

    def text(self) -> str:
        parameters = f"{self.parameters:,} parameters"
        if len(self.names) == 1:
            return f"nothing ran in {self.title()}, which has {parameters}"
        return f"nothing ran in {len(self.names):,} modules {self.title()}, which have {parameters}"


def _parameter_notes(unread: Iterable[tuple[str, Parameter]]) -> list[Note]:
    groups: dict[str, list[tuple[str, Parameter]]] = defaultdict(list)
    numbers: set[int] = set()
    for name, parameter in unread:
        if parameter.number not in numbers or parameter.number < 0:
            numbers.add(parameter.number)
            groups[_pattern(name)].append((name, parameter))
    notes = []
    for pattern, group in groups.items():
        total = f"{sum(numbers_in(parameter) for _, parameter in group):,} numbers"
        if len(group) == 1:
            text = f"no operation reads the parameter {group[0][0]} ({total})"
        else:
            text = f"no operation reads the {len(group):,} parameters {pattern} ({total})"
        notes.append(Note(text, topic="unused"))
    return _few(notes, "kinds of parameters that no operation reads")


# -- what FLOPs leave out ------------------------------------------------------------------


def _flops_notes(graph: Graph) -> Iterator[Note]:
    """Name the kernels whose work FLOPs leave out, by the reason, those first that ran most."""
    ran = Counter(chain.from_iterable([node.kernels for node in graph.nodes if node.flops != 0]))
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for kernel, why in graph.uncounted.items():
        if ran[kernel]:
            reasons[why][kernel] = ran[kernel]
    for why, times in reasons.items():
        yield Note(f"FLOPs leave out {_counted(times)}: {why}", topic="flops")


# -- words ---------------------------------------------------------------------------------


def _pattern(name: str) -> str:
    """Return a dotted path with `*` for each number: `layers.*.bias`, `expert_*`."""
    return _NUMBER.sub("*", name)


def _counted(times: Counter[str]) -> str:
    return ", ".join(
        f"{name} x{count:,}" if count > 1 else name for name, count in times.most_common()
    )


def _few(notes: list[Note], what: str) -> list[Note]:
    more = len(notes) - _MOST_NOTES
    if more <= 0:
        return notes
    return [*notes[:_MOST_NOTES], Note(f"and {more:,} more {what}", topic="unused")]
