"""Notes on what ranks do together: what is gathered again, what is read at once, who has most.

They are observations, and no advice: what is gathered again saves memory, what is read at once may
be short, and streams of a device may do other things meanwhile.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import mean

from tbscope.figures.units import bytes_text
from tbscope.ir.climbs import upward
from tbscope.ir.graph import Graph, Node, Note, Value
from tbscope.ir.nodes import sources_of
from tbscope.ir.ranks import Part, ranks_text

__all__ = ["exchange_notes", "share_notes"]

# A step of a path that is a number.
_NUMBER = re.compile(r"(?<![^.\[/])[0-9]+(?![^.\]/])")
_MOST_NOTES = 5
# Fewer are no loop.
_LEAST_ROUNDS = 2
_MORE = 1.2
_SHARES = {
    "parameter_bytes": "the bytes of parameters",
    "activation_bytes": "the bytes of activations",
    "flops": "the FLOPs",
}


def exchange_notes(graph: Graph) -> list[Note]:
    """Return the notes on the collectives of one rank; they tell nothing of its boxes."""
    joined = [node for node in graph.nodes if node.collective is not None]
    if not joined:
        return []
    return [*_few(_gathered_again(joined)), *_few(_read_at_once(graph, joined))]


def share_notes(parts: Sequence[Part]) -> list[Note]:
    """Return the notes on ranks that have more than others, which may wait for them."""
    notes = []
    for name, words in _SHARES.items():
        by_rank = {rank: part.figures.get(name, 0) for part in parts for rank in part.ranks}
        usual = mean(by_rank.values()) if by_rank else 0
        ahead = {rank: count for rank, count in by_rank.items() if count > _MORE * usual}
        if ahead:
            times = max(ahead.values()) / usual
            have = "has" if len(ahead) == 1 else "have"
            text = f"{ranks_text(ahead)} {have} up to {times:.2g} times the mean of {words}"
            notes.append(Note(text))
    return notes


# -- what is gathered again -----------------------------------------------------------------


def _gathered_again(joined: Iterable[Node]) -> Iterator[Note]:
    """Tell of parameters that several collectives gather, those of equal modules together."""
    times: dict[tuple[str, ...], list[Node]] = defaultdict(list)
    for node in joined:
        if node.collective is not None and node.collective.kind == "all_gather":
            names = _parameters_behind(node.inputs)
            if names:
                times[names].append(node)
    alike: dict[tuple[str, int], list[tuple[tuple[str, ...], list[Node]]]] = defaultdict(list)
    for names, nodes in times.items():
        if len(nodes) > 1:
            alike[_pattern(_common(names)), len(nodes)].append((names, nodes))
    for (pattern, count), groups in alike.items():
        whole = sum(_moved(nodes[:1]) for _, nodes in groups)
        again = ", also in the backward pass" if _in_both(groups[0][1]) else ""
        where = f"of {pattern}" if pattern else "of the model itself"
        text = (
            f"the parameters {where} are gathered {count} times{again} ({bytes_text(whole)} each)"
        )
        yield Note(text, None, groups[0][1][0])


def _parameters_behind(values: Iterable[Value]) -> tuple[str, ...]:
    """Return the parameters that values are made of; none where there is anything else in them."""
    found: dict[str, None] = {}
    seen: set[Node] = set()
    pending = [value.producer for value in values]
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.kind == "parameter":
            found[node.name.partition("~")[0]] = None
        elif node.kind == "input" or node.flops or node.collective is not None:
            return ()
        pending += [value.producer for value in node.inputs]
    return tuple(sorted(found))


def _common(names: Sequence[str]) -> str:
    """Return the module that is around all of some parameters."""
    paths = [name.split(".")[:-1] for name in names]
    shared = []
    for steps in zip(*paths, strict=False):
        if len(set(steps)) > 1:
            break
        shared.append(steps[0])
    return ".".join(shared)


def _in_both(nodes: Iterable[Node]) -> bool:
    return {node.phase for node in nodes} >= {"forward", "backward"}


# -- what is read at once -----------------------------------------------------------------


def _read_at_once(graph: Graph, joined: Sequence[Node]) -> Iterator[Note]:
    """Tell of collectives in layers whose results are read before anything large is computed."""
    places = {node: place for place, node in enumerate(graph.nodes)}
    work = [place for place, node in enumerate(graph.nodes) if node.flops]
    readers: dict[Node, int] = {}
    for place, node in enumerate(graph.nodes):
        for other in sources_of(node):
            if other.collective is not None:
                readers.setdefault(other, place)
    rounds: dict[tuple[str, str, str, str], list[Node]] = defaultdict(list)
    scopes: dict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    for node in joined:
        told, end = node.collective, readers.get(node)
        if told is None or node.scope is None or end is None:
            continue
        start = places[node]
        hidden = told.asynchronous and any(start < place < end for place in work)
        if not hidden:
            steps = [str(one.part) for one in upward(node.scope) if one.kind != "rank"]
            within = "/".join(reversed(steps))
            key = (told.kind, told.mesh, _pattern(within), node.phase)
            rounds[key].append(node)
            scopes[key].add(node.scope.path)
    for (kind, mesh, pattern, _), nodes in rounds.items():
        several = len(scopes[kind, mesh, pattern, nodes[0].phase]) >= _LEAST_ROUNDS
        if several and "*" in pattern:
            over = f" over {mesh}" if mesh else ""
            text = (
                f"no product is called between {kind}{over} and what reads it in {pattern}: "
                f"{len(nodes):,} times, {bytes_text(_moved(nodes))} in all"
            )
            yield Note(text, nodes[0].source, nodes[0])


# -- words ----------------------------------------------------------------------------------


def _pattern(path: str) -> str:
    """Return a path with `*` for each number: `blocks.*`."""
    return _NUMBER.sub("*", path)


def _moved(nodes: Iterable[Node]) -> int:
    return sum(node.collective.moved_bytes for node in nodes if node.collective is not None)


def _few(notes: Iterable[Note]) -> list[Note]:
    listed = list(notes)
    more = len(listed) - _MOST_NOTES
    if more > 0:
        kinds = "kinds of what ranks do together"
        listed[_MOST_NOTES:] = [Note(f"and {more:,} more {kinds}")]
    return listed
