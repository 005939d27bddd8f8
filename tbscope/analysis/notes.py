"""Notes: remarks on a run that no drawing shows, derived from the finished graph.

They report tensor data that Python read, unused inputs, modules and parameters, random operations,
and kernels missing from FLOPs: few sentences, however large the model.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from itertools import chain
from typing import NamedTuple

from tbscope.analysis.units import counted
from tbscope.ir.graph import Graph, Module, Node, Note, Parameter, Source, Value
from tbscope.ir.module_tree import numel_of
from tbscope.ir.scope_io import STATE, with_above

# The operations of a scripted module are recorded, but not which of its submodules ran them.
_SCRIPTED = "torch.jit."

_DECIDES = frozenset({"bool", "is_nonzero", "equal", "allclose"})
# The methods that Python calls for `range(x)` and for `numpy.asarray(x)`.
_PROTOCOLS = {"index": "__index__", "array": "__array__"}

# The number at the end of a component of a path.
_NUMBER = re.compile(r"[0-9]+(?![^.])")


class DataRead(NamedTuple):
    """One read of a tensor's data by Python.

    Attributes:
        value: The value of the tensor.
        by: The method that read it: `bool`, `item`, `tolist`.
        source: The line of the user's code, or None if unknown.
    """

    value: Value
    by: str
    source: Source | None


def find_notes(
    graph: Graph, *, reads: Iterable[DataRead], whole: bool, stood_in: Set[int] = frozenset()
) -> list[Note]:
    """Return the notes of a completed run, the most important first.

    Args:
        graph: The graph of the run.
        reads: The reads of its tensors by Python.
        whole: Whether the run reached its end. An aborted run has no notes on unused objects, since
            it might have used them later.
        stood_in: The numbers of the parameters that were replaced by other tensors.
    """
    unused = [*_input_notes(graph), *_unused_notes(graph, stood_in)] if whole else []
    notes = [*_read_notes(reads), *unused]
    drawn = Counter([node.op for node in graph.nodes if node.random])
    if drawn:
        notes.append(
            Note(f"random numbers were drawn by {counted(drawn.most_common())}", topic="random")
        )
    return [*notes, *_flops_notes(graph)]


# -- reads by Python -----------------------------------------------------------------------


def _read_notes(reads: Iterable[DataRead]) -> Iterator[Note]:
    """Yield a note for each line of code that reads tensors, however often it does."""
    lines: dict[tuple[str, object], list[DataRead]] = {}
    for read in reads:
        # Reads without a line are grouped by the operation that produced the tensor.
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


# -- unused inputs, modules and parameters -------------------------------------------------


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


def _unused_notes(graph: Graph, stood_in: Set[int]) -> Iterator[Note]:
    """Yield notes on modules in which nothing ran, and on parameters that nothing read."""
    scopes = (*{node.scope for node in graph.nodes}, *[call.scope for call in graph.calls])
    ran = {scope.qualified_name for scope in with_above(scopes)}
    # If all tensors of a module were replaced, the replacements may have been used instead.
    idle = {
        module.name
        for module in graph.modules
        if module.name not in ran
        and not (
            module.parameters and {parameter.number for parameter in module.parameters} <= stood_in
        )
    }
    names = {node.name for node in graph.nodes if node.kind in STATE}
    # A parameter with the name of an input has a number after its name.
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
    yield from _idle_notes(graph, idle, used)
    yield from _parameter_notes(
        (name, parameter)
        for module, name, parameter in unread
        if module.name not in idle
        and parameter.kind == "parameter"
        and parameter.number not in used
    )


def _idle_notes(graph: Graph, idle: set[str], used: set[int]) -> Iterator[Note]:
    """Yield a note on each kind of outermost modules in which nothing ran, the largest first."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    sizes = Counter[tuple[str, str]]()
    group, seen = ("", ""), set(used)
    for module in graph.modules:
        if module.name not in idle or module.class_name.startswith(_SCRIPTED):
            continue
        # Submodules follow their parent in `graph.modules`, so `group` is the parent's.
        if not module.name or module.name.rpartition(".")[0] not in idle:
            group = _pattern(module.name), module.class_name.rpartition(".")[2]
            groups[group].append(module.name)
        for parameter in module.parameters:
            if parameter.kind == "parameter" and parameter.number not in seen:
                seen.add(parameter.number)
                sizes[group] += numel_of(parameter)
    for group, names in sorted(groups.items(), key=lambda item: -sizes[item[0]]):
        pattern, label = group
        count, verb = ("", "has") if len(names) == 1 else (f"{len(names):,} modules ", "have")
        name = names[0] if len(names) == 1 else pattern
        text = f"nothing ran in {count}{f'{name} ({label})' if name else label}"
        if sizes[group]:
            text += f", which {verb} {sizes[group]:,} parameters"
        yield Note(text, topic="unused")


def _parameter_notes(unread: Iterable[tuple[str, Parameter]]) -> Iterator[Note]:
    groups: dict[str, list[str]] = defaultdict(list)
    sizes = Counter[str]()
    numbers: set[int] = set()
    for name, parameter in unread:
        if parameter.number not in numbers or parameter.number < 0:
            numbers.add(parameter.number)
            groups[_pattern(name)].append(name)
            sizes[_pattern(name)] += numel_of(parameter)
    for pattern, names in groups.items():
        which = f"parameter {names[0]}"
        if len(names) > 1:
            which = f"{len(names):,} parameters {pattern}"
        text = f"no operation reads the {which} ({sizes[pattern]:,} numbers)"
        yield Note(text, topic="unused")


# -- kernels missing from FLOPs ------------------------------------------------------------


def _flops_notes(graph: Graph) -> Iterator[Note]:
    """Yield a note for each reason with the kernels missing from FLOPs, the most frequent first."""
    ran = Counter(chain.from_iterable([node.kernels for node in graph.nodes if node.flops != 0]))
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for kernel, why in graph.uncounted.items():
        if ran[kernel]:
            reasons[why][kernel] = ran[kernel]
    for why, times in reasons.items():
        yield Note(f"FLOPs leave out {counted(times.most_common())}: {why}", topic="flops")


# -- texts ---------------------------------------------------------------------------------


def _pattern(name: str) -> str:
    """Return a dotted path with `*` for each number: `layers.*.bias`, `expert_*`."""
    return _NUMBER.sub("*", name)
