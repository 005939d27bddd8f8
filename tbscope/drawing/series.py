"""Series: keeps TensorBoard from folding siblings into one node that are not alike.

The page folds five or more siblings of one op type whose names end in consecutive
numbers (tensorboard/plugins/graph/tf_graph_common/hierarchy.ts, `detectSeries`). That is
right for equal layers of one list, and for the calls of one module in a loop. `conv1` to
`conv5` are five different things: they get op types of their own, `Conv2d[conv1]`.
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from tbscope.drawing.naming import Names
from tbscope.ir.graph import Graph, Nest, Node, Output
from tbscope.ir.nests import form_of
from tbscope.page.constants import CHAIN_LIMIT, SERIES_SIZE
from tbscope.page.ops import op_type
from tbscope.page.siblings import Siblings

__all__ = ["folded_in_vain", "op_type_apart", "op_types_apart"]

_DIGITS = "0123456789"
_DIGIT = re.compile("[0-9]")
# Facts that tell one layer of a list from the next, and no difference between them.
_OWN = ("module", "flops", "flops_not_counted")


class _Member(NamedTuple):
    """One of the siblings that may be folded.

    Attributes:
        number: The number that its name ends in.
        thing: The node or the output.
        beside: Whether it stands in the place of its list: `convs.0`.
    """

    number: int
    thing: Node | Output
    beside: bool


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
        # The page reads no number where another digit stands before it.
        if not _DIGIT.search(stem, stem.rfind("/") + 1):
            number = int(name[len(stem) :])
            found[stem, op].append(_Member(number, thing, stem.endswith(".")))
    return {
        thing: op_type_apart(thing)
        for members in found.values()
        if len(members) >= SERIES_SIZE
        for thing in _told_apart(members, facts)
    }


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


def _told_apart(
    members: Iterable[_Member], facts: Mapping[Node, Mapping[str, Nest]]
) -> Iterator[Node | Output]:
    """Yield the things that must not be folded with the ones beside them."""
    run: list[_Member] = []
    for member in sorted(members, key=itemgetter(0)):
        if run and member.number != run[-1].number + 1:
            yield from _of_one_run(run, facts)
            run = []
        run.append(member)
    yield from _of_one_run(run, facts)


def _of_one_run(
    run: list[_Member], facts: Mapping[Node, Mapping[str, Nest]]
) -> Iterator[Node | Output]:
    if len(run) < SERIES_SIZE:
        return
    before_folds = False
    for _, alike in groupby(run, key=lambda member: _kind(member, facts)):
        group = [member.thing for member in alike]
        # Two series side by side would become one.
        folds = len(group) >= SERIES_SIZE and not before_folds
        if not folds:
            yield from group
        before_folds = folds


def _kind(member: _Member, facts: Mapping[Node, Mapping[str, Nest]]) -> Hashable:
    """Return a key that is equal for members that are alike."""
    thing = member.thing
    if isinstance(thing, Output):
        listed = "." in thing.name and not thing.name.startswith("out.")
        return (thing.value.shape, thing.value.dtype) if listed else thing.name
    types = tuple([(value.shape, value.dtype) for value in thing.outputs])
    if thing.kind == "input":
        return types if "." in thing.name else thing.name
    assert thing.scope is not None
    part = thing.scope.part
    if part.index:
        # One module called again and again.
        return part.attribute
    if member.beside or part.attribute is None or not part.attribute.isdigit():
        return thing.name
    alike = dict(facts.get(thing, thing.attributes))
    for name in _OWN:
        alike.pop(name, None)
    return types, form_of(alike) or repr(alike)


def folded_in_vain(level: Siblings) -> list[str]:
    """Return the labels of what the page would fold and then put aside, whole in itself.

    That are layers of a list between which their parent works: their stack has all its lines.
    """
    stacks = level.series()
    if not stacks or len(level) > CHAIN_LIMIT:
        return []
    if level.folded().keeps_flow() or not level.keeps_flow():
        return []
    return [level.labels[place] for members in stacks for place in members]


def op_type_apart(thing: Node | Output) -> str:
    """Return the op type of a thing that must not be folded: `Linear[0]`, `Output[logits]`."""
    if isinstance(thing, Output):
        return op_type(f"Output[{thing.name}]")
    if thing.kind == "input":
        return op_type(f"Input[{thing.name}]")
    return op_type(str(thing.scope.part if thing.scope else thing.op))
