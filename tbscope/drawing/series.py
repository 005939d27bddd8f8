"""Series: keeps TensorBoard from folding siblings into one node that are not alike.

The page folds five or more siblings of one op type whose names end in consecutive
numbers (tensorboard/plugins/graph/tf_graph_common/hierarchy.ts, `detectSeries`). That is
right for equal layers or parameters of one list, and for the calls of one module in a loop.
`conv1` to `conv5` are five different things: they get op types of their own, `Conv2d[conv1]`.
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from tbscope.drawing.naming import Names, attribute_of, parameters_by_place
from tbscope.ir.graph import Graph, Nest, Node, Output, Parameter, Value
from tbscope.ir.nests import form_of, map_nest
from tbscope.ir.regions import STATE
from tbscope.ir.scopes import Scope
from tbscope.page.constants import CHAIN_LIMIT, SERIES_SIZE
from tbscope.page.ops import is_embedded, op_type
from tbscope.page.siblings import Siblings

__all__ = ["folded_in_vain", "op_type_apart", "op_types_apart"]

_DIGITS = "0123456789"
_DIGIT = re.compile("[0-9]")
# Facts that tell one layer of a list from the next, and no difference between them.
_OWN = frozenset({"module", "flops", "flops_not_counted"})


class _Member(NamedTuple):
    """One of the siblings that may be folded.

    Attributes:
        number: The number that its name ends in.
        thing: The node or the output.
        stem: The part of its label before that.
    """

    number: int
    thing: Node | Output
    stem: str


def op_types_apart(
    graph: Graph,
    names: Names,
    facts: Mapping[Node, Mapping[str, Nest]],
    ops: Mapping[Node | Output, str],
) -> dict[Node | Output, str]:
    """Find op types for the nodes that would be folded and must not be.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        names: The names of its nodes.
        facts: What is told of each node that stands for a module.
        ops: The op type of each node.
    Returns:
        For each such node or output its op type, as `Conv2d[conv1]`; the others keep theirs.
    """
    found: dict[tuple[str, str], list[_Member]] = defaultdict(list)
    for name, op, thing in _numbered(graph, names, ops):
        above = name.rstrip(_DIGITS)
        stem = above[above.rfind("/") + 1 :]
        # The page reads no number where another digit stands before it.
        if not _DIGIT.search(stem):
            found[above, op].append(_Member(int(name[len(above) :]), thing, stem))
    kinds = _Kinds(graph, facts)
    return {
        thing: op_type_apart(thing, ops[thing])
        for members in found.values()
        if len(members) >= SERIES_SIZE
        for thing in _told_apart(members, kinds)
    }


def _numbered(
    graph: Graph, names: Names, ops: Mapping[Node | Output, str]
) -> Iterator[tuple[str, str, Node | Output]]:
    """Yield the nodes and outputs whose names end in a number: name, op type, node.

    Circles are never folded.
    """
    for node, name in names.nodes.items():
        if name[-1] in _DIGITS and not is_embedded(ops[node]):
            yield name, ops[node], node
    for name, output in zip(names.outputs, graph.outputs, strict=True):
        if name[-1] in _DIGITS:
            yield name, ops[output], output


def _told_apart(members: Iterable[_Member], kinds: "_Kinds") -> Iterator[Node | Output]:
    """Yield the things that must not be folded with the ones beside them."""
    run: list[_Member] = []
    for member in sorted(members, key=itemgetter(0)):
        if run and member.number != run[-1].number + 1:
            yield from _of_one_run(run, kinds)
            run = []
        run.append(member)
    yield from _of_one_run(run, kinds)


def _of_one_run(run: list[_Member], kinds: "_Kinds") -> Iterator[Node | Output]:
    if len(run) < SERIES_SIZE:
        return
    before_folds = False
    for _, alike in groupby(run, key=kinds.of):
        group = [member.thing for member in alike]
        # Two series side by side would become one.
        folds = len(group) >= SERIES_SIZE and not before_folds
        if not folds:
            yield from group
        before_folds = folds


class _Kinds:
    """Knows which members of a series are alike.

    Args:
        graph: The graph.
        facts: What is told of each node that stands for a module.
    """

    def __init__(self, graph: Graph, facts: Mapping[Node, Mapping[str, Nest]]) -> None:
        self._graph = graph
        self._facts = facts

    @cached_property
    def _parameters(self) -> dict[tuple[Scope | None, str], Parameter]:
        return parameters_by_place(self._graph)

    def of(self, member: _Member) -> Hashable:
        """Return a key that is equal for members that are alike."""
        thing = member.thing
        if isinstance(thing, Output):
            listed = "." in thing.name and not thing.name.startswith("out.")
            return (thing.value.shape, thing.value.dtype) if listed else thing.name
        types = tuple([(value.shape, value.dtype) for value in thing.outputs])
        if thing.kind == "input":
            return types if "." in thing.name else thing.name
        told = self._facts.get(thing, thing.attributes)
        again = thing.kind == "module" and thing.scope is not None and thing.scope.part.index > 0
        if again and "module" in told:
            # One module called again and again.
            return str(told["module"])
        if member.stem and not again:
            # Its number is a part of a name that the user chose.
            return thing.name
        alike = {name: fact for name, fact in told.items() if name not in _OWN}
        if thing.kind in STATE:
            known = self._parameters.get((thing.scope, attribute_of(thing)))
            alike["requires_grad"] = None if known is None else known.requires_grad
        given = [(key, map_nest(nest, _constant)) for key, nest in thing.arguments]
        return types, form_of((alike, given)) or repr((alike, given))


def _constant(given: Nest) -> Nest:
    """Return a constant argument; None for a value, which an edge shows."""
    return None if isinstance(given, Value) else given


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


def op_type_apart(thing: Node | Output, op: str) -> str:
    """Return the op type of a thing that must not be folded: `Linear[0]`, `Output[logits]`."""
    if isinstance(thing, Node) and thing.kind == "module" and thing.scope is not None:
        return op_type(str(thing.scope.part))
    return op_type(f"{op}[{thing.name}]")
