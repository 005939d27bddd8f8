"""Series: keeps TensorBoard from folding siblings into one node that are not alike.

The page folds five or more siblings of one op type whose names end in consecutive
numbers (tensorboard/plugins/graph/tf_graph_common/hierarchy.ts, `detectSeries`). That is
right for equal layers of one list, and for the calls of one module in a loop. `conv1` to
`conv5` are five different things: they get op types of their own, `Conv2d[conv1]`.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from tbscope.drawing.naming import Names
from tbscope.ir.graph import Graph, Nest, Node, Output
from tbscope.page.constants import CHAIN_LIMIT, SERIES_SIZE
from tbscope.page.ops import op_type
from tbscope.page.siblings import Siblings

__all__ = ["folded_in_vain", "op_type_apart", "op_types_apart"]

_DIGITS = "0123456789"
# Facts that tell one layer of a list from the next, and no difference between them.
_OWN = ("module", "flops", "flops_not_counted")


class _Member(NamedTuple):
    """One of the siblings that may be folded.

    Attributes:
        number: The number that its name ends in.
        thing: The node or the output.
        kind: A key that is equal for members that are alike.
        op: The op type that it gets where it must not be folded.
        beside: Whether it stands in the place of its list: `convs.0`.
    """

    number: int
    thing: Node | Output
    kind: Hashable
    op: str
    beside: bool = False


def op_types_apart(
    graph: Graph, names: Names, facts: Mapping[Node, Mapping[str, Nest]]
) -> dict[Node | Output, str]:
    """Find op types for the nodes that would be folded and must not be.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        names: The names of its nodes.
        facts: What is told of each node that stands for a module.
    Returns:
        For each such node or output its op type, as `Conv2d[conv1]`; the others keep theirs.
    """
    found: dict[tuple[str, str], list[_Member]] = defaultdict(list)
    for name, op, thing in _numbered(graph, names):
        stem = name.rstrip(_DIGITS)
        leaf = stem.rpartition("/")[2]
        # The page reads no number where another digit stands before it.
        if not any(digit in leaf for digit in _DIGITS):
            number = int(name[len(stem) :])
            found[stem, op].append(_Member(number, thing, None, op, leaf.endswith(".")))
    apart: dict[Node | Output, str] = {}
    for members in found.values():
        if len(members) >= SERIES_SIZE:
            for member in _told_apart([_described(member, facts) for member in members]):
                apart[member.thing] = member.op
    return apart


def _numbered(graph: Graph, names: Names) -> Iterator[tuple[str, str, Node | Output]]:
    """Yield the things whose names, of the user's choice, end in a number: name, op type, thing."""
    for node in graph.nodes:
        kind = node.kind
        if kind == "module" or kind == "input":
            name = names.nodes[node]
            if name[-1] in _DIGITS:
                yield name, node.op, node
    for name, output in zip(names.outputs, graph.outputs, strict=True):
        if name[-1] in _DIGITS:
            yield name, "Output", output


def _described(member: _Member, facts: Mapping[Node, Mapping[str, Nest]]) -> _Member:
    """Return a member with its kind, which is equal for members that are alike."""
    thing = member.thing
    kind: Hashable
    if isinstance(thing, Output):
        value = thing.value
        listed = "." in thing.name and not thing.name.startswith("out.")
        kind = (value.shape, value.dtype) if listed else thing.name
        return member._replace(kind=kind, op=op_type_apart(thing))
    types = tuple((value.shape, value.dtype) for value in thing.outputs)
    if thing.kind == "input":
        kind = types if "." in thing.name else thing.name
        return member._replace(kind=kind, op=op_type_apart(thing))
    assert thing.scope is not None
    part = thing.scope.part
    if part.index:
        # One module called again and again.
        kind = part.attribute
    elif part.attribute is not None and part.attribute.isdigit() and not member.beside:
        told = facts.get(thing, thing.attributes)
        kind = (types, repr({name: fact for name, fact in told.items() if name not in _OWN}))
    else:
        kind = thing.name
    return member._replace(kind=kind, op=op_type_apart(thing))


def _told_apart(members: Iterable[_Member]) -> Iterator[_Member]:
    """Yield the members that must not be folded with the ones beside them."""
    run: list[_Member] = []
    for member in sorted(members, key=lambda one: one.number):
        if run and member.number != run[-1].number + 1:
            yield from _of_one_run(run)
            run = []
        run.append(member)
    yield from _of_one_run(run)


def _of_one_run(run: list[_Member]) -> Iterator[_Member]:
    if len(run) < SERIES_SIZE:
        return
    before_folds = False
    for _, alike in groupby(run, key=lambda member: member.kind):
        group = list(alike)
        # Two series side by side would become one.
        folds = len(group) >= SERIES_SIZE and not before_folds
        if not folds:
            yield from group
        before_folds = folds


def folded_in_vain(level: Siblings) -> list[str]:
    """Return the labels of what the page would fold and then put aside, whole in itself.

    That are layers of a list between which their parent works: their stack has all its lines.
    """
    stacks = level.series()
    if not stacks or len(level) > CHAIN_LIMIT:
        return []
    if level.grouped(stacks).keeps_flow() or not level.keeps_flow():
        return []
    return [level.labels[place] for members in stacks for place in members]


def op_type_apart(thing: Node | Output) -> str:
    """Return the op type of a thing that must not be folded: `Linear[0]`, `Output[logits]`."""
    if isinstance(thing, Output):
        return op_type(f"Output[{thing.name}]")
    if thing.kind == "input":
        return op_type(f"Input[{thing.name}]")
    return op_type(str(thing.scope.part if thing.scope else thing.op))
