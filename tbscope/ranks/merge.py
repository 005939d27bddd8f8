"""Merging of several ranks' graphs: ranks with graphs of equal structure are drawn once.

If all ranks ran the same operations, the result is the graph of the first rank, with notes on the
differences. Otherwise each part (a group of equivalent ranks) is drawn in a box of its own, and
collectives and messages connect the boxes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tbscope.errors import ArgumentError
from tbscope.ir.builder import Names, claim_name
from tbscope.ir.editing import Editor, replace_nodes
from tbscope.ir.graph import Argument, Graph, Node, Note, Output
from tbscope.ir.invariants import check_invariants
from tbscope.ir.metadata import Part, device_on, ranks_text, split_device
from tbscope.ir.nodes import constants_of
from tbscope.ir.scope_io import STATE
from tbscope.ir.scopes import Scope, ScopePart, self_and_ancestors
from tbscope.messages import error_text, shown
from tbscope.ranks.graph_copy import RankCopy
from tbscope.ranks.match_collectives import Joint, match_parts
from tbscope.ranks.rank_classes import groups_of, parts_of, shared_nodes, sizes_of, structure_of
from tbscope.ranks.rank_differences import find_difference
from tbscope.ranks.rank_options import check_unfolded
from tbscope.ranks.rank_shares import figures_of, whole_model
from tbscope.ranks.stages import RankStages, find_stages
from tbscope.utils.validation import check_truth

_MOST_TOLD = 6


def merge_ranks(graphs: Iterable[Graph], *, unfolded: bool = False) -> Graph:
    """Merge the graphs of several ranks of one run into one graph.

    >>> import torch, tbscope
    >>> model, x = torch.nn.Linear(3, 5), torch.rand(1, 3)
    >>> ranks = [tbscope.trace(model, x, world_size=2, rank=rank) for rank in (0, 1)]
    >>> tbscope.merge_ranks(ranks).parts[0].ranks
    (0, 1)

    Args:
        graphs: The recorded graphs in any order, one for each rank. They are not changed. Ranks
            that did the same may share contents: `dataclasses.replace(graph, rank=1)`.
        unfolded: Whether each rank has a box of its own, of up to 64; otherwise ranks that ran the
            same operations are drawn once, with notes on their differences.
    Returns:
        A new graph, whose `parts` list the ranks. The device of each value begins with the ranks
        that contain it: `ranks 0-7 cuda:0`.
    Raises:
        ArgumentError: There is no graph, two are of one rank, one is merged already, or there are
            too many to be drawn unfolded.
        GraphError: A graph breaks an invariant.
    """
    check_truth("unfolded", unfolded)
    ordered = _checked(graphs)
    if unfolded:
        check_unfolded(len(ordered))
    groups = [[graph] for graph in ordered] if unfolded else groups_of(ordered)
    for group in groups:
        check_invariants(group[0])
    merged = _side_by_side(groups, apart=unfolded)
    merged.rank = ordered[0].rank
    merged.world_size = max(ordered[-1].rank + 1, *[graph.world_size for graph in ordered])
    merged.mesh = ordered[0].mesh
    return merged


def _checked(graphs: Any) -> list[Graph]:
    """Return the graphs in the order of their ranks."""
    why, listed = "it merges what several processes recorded", []
    try:
        listed = list(graphs)
    except Exception as error:  # noqa: BLE001  Whatever it is, it lists no graphs.
        why += f"; to list it raised {error_text(error)}"
    if not listed or not all(isinstance(graph, Graph) for graph in listed):
        raise ArgumentError(
            f"merge_ranks takes the graphs of ranks, and was given {shown(graphs)}",
            why=why,
            fix="tbscope.merge_ranks([tbscope.load(f'rank{n}.json') for n in range(8)])",
        )
    seen: dict[int, str] = {}
    for graph in listed:
        if graph.parts:
            ranks = ranks_text(rank for part in graph.parts for rank in part.ranks)
            raise ArgumentError(
                f"merge_ranks was given a graph that is merged already, of {ranks}",
                why="it merges what each rank recorded",
                fix="give the graphs of all ranks at once",
            )
        if graph.rank in seen:
            raise ArgumentError(
                f"merge_ranks was given two graphs of rank {graph.rank}: "
                f"of {seen[graph.rank]} and of {graph.name}",
                why="each rank of a run has one graph",
                fix="give each another rank: graph.rank = 1",
            )
        seen[graph.rank] = graph.name
    return sorted(listed, key=lambda graph: graph.rank)


# -- parts side by side ----------------------------------------------------------------------


def _side_by_side(groups: Sequence[Sequence[Graph]], *, apart: bool) -> Graph:
    """Return the graph of groups of ranks, each drawn as its first rank.

    Args:
        groups: Graphs of equivalent ranks. A single group has no box.
        apart: Whether groups are drawn apart even as far as they are equal.
    """
    parts = [Part(tuple([graph.rank for graph in group])) for group in groups]
    stages = find_stages(parts, [group[0] for group in groups])
    parts = [
        part._replace(stage=own.numbers[0]) if own.numbers else part
        for part, own in zip(parts, stages, strict=True)
    ]
    times = Counter(number for own in stages for number in own.numbers)
    shared = 0 if apart or times or len(groups) == 1 else shared_nodes([own[0] for own in groups])
    merged = Graph(groups[0][0].name)
    totals = whole_model(list(zip(parts, groups, strict=True)))
    copies: list[RankCopy] = []
    phases: dict[ScopePart, Scope] = {}
    number = 0
    for group, part, own in zip(groups, parts, stages, strict=True):
        box = _box_of(part, times) if len(groups) > 1 else None
        box_of = {
            node: _box_of(part._replace(stage=stage), times) for node, stage in own.of_node.items()
        }
        copy = RankCopy(group[0], part.ranks, box, number, phases, box_of, shared)
        # Ranks with a phase in common have one model.
        number = 0 if shared else copy.next_number
        graph = copy.graph
        _tell_differences(graph.nodes, group)
        copies.append(copy)
        merged.calls += graph.calls
        merged.inputs += graph.inputs
        # Each part is a separate model, so its modules are not shared with the other parts.
        merged.modules += graph.modules
        merged.signatures |= graph.signatures
        merged.uncounted |= graph.uncounted
        boxed = part._replace(scope="" if copy.box is None else copy.box.path)
        merged.parts += _with_figures(group, boxed, totals)
    if len(copies) == 1:
        merged.profile = copies[0].graph.profile
    merged.outputs = list(_outputs(copies))
    merged.notes = [*_differences(copies, groups, stages), *_notes(copies, parts)]
    part_of = {rank: index for index, part in enumerate(parts) for rank in part.ranks}
    joint = match_parts([copy.graph.nodes for copy in copies], part_of)
    if shared:
        _tell_differences(copies[0].shared, [graph for group in groups for graph in group])
        joint = _share(merged, joint, copies)
    _name(copies, joint.order)
    replace_nodes(merged, joint.order)
    _join(merged, joint, {node: copy for copy in copies for node in copy.graph.nodes})
    boxes = [scope.path for scope in merged.scopes() if scope.kind == "rank"]
    # A rank that has its forward pass in common with others has boxes in later phases alone. If all
    # of its operations are collectives with other ranks, its box is empty and gone.
    merged.parts = tuple(
        part._replace(scope=next((path for path in boxes if path.endswith(part.scope)), ""))
        if part.scope
        else part
        for part in merged.parts
    )
    return merged


def _share(merged: Graph, joint: Joint, copies: Sequence[RankCopy]) -> Joint:
    """Replace the leading nodes of all copies but the first by those of the first copy.

    Args:
        merged: The graph of all copies, still without nodes; changed in place.
        joint: The connections between the copies.
        copies: The copies.
    Returns:
        The connections that remain, and the order of the nodes that remain.
    """
    first, *others = copies
    ranks = ranks_text(rank for copy in copies for rank in copy.numbers)
    for value in (value for node in first.shared for value in node.outputs):
        value.device = device_on(ranks, split_device(value.device)[1])
    editor, gone, common = Editor(merged), set[Node](), set[Scope]()
    for copy in others:
        for node, instead in zip(copy.shared, first.shared, strict=True):
            editor.merge(node, instead)
        gone.update(copy.shared)
        common |= copy.common
    merged.calls = [call for call in merged.calls if call.scope not in common]
    merged.outputs = [each for each in merged.outputs if each.value.producer not in gone]
    seen = {module[:2] for module in first.graph.modules}
    own = [module for module in merged.modules if module[:2] not in seen]
    merged.modules = [*first.graph.modules, *own]
    placed = gone.union(first.shared)
    order = [*first.shared, *(node for node in joint.order if node not in placed)]
    replace_nodes(merged, order)
    editor.apply()
    collectives = [nodes for nodes in joint.collectives if gone.isdisjoint(nodes)]
    return Joint(collectives, joint.messages, order)


def _box_of(part: Part, times: Mapping[int, int]) -> str:
    """Return the name of a part's box: short, because the page cuts long names.

    Args:
        part: The part, with the stage whose box it is.
        times: The number of parts that have each stage.
    """
    is_only = part.stage is not None and times[part.stage] == 1
    return f"stage {part.stage}" if is_only else str(part)


def _with_figures(group: Sequence[Graph], part: Part, whole: Mapping[str, int]) -> tuple[Part, ...]:
    """Return one part for each set of ranks in the group with equal figures."""
    ranks_by_figures: dict[tuple[tuple[str, int], ...], list[int]] = {}
    cached: dict[int, dict[str, int]] = {}
    for graph in group:
        figures = cached.get(id(graph.nodes))
        if figures is None:
            figures = cached[id(graph.nodes)] = figures_of(graph)
        ranks_by_figures.setdefault(tuple(figures.items()), []).append(graph.rank)
    return tuple(
        part._replace(ranks=tuple(ranks), figures={**dict(figures), **whole})
        for figures, ranks in ranks_by_figures.items()
    )


def _outputs(copies: Sequence[RankCopy]) -> Iterator[Output]:
    taken = set[str]()
    for copy in copies:
        for output in copy.graph.outputs:
            name = f"{copy.ranks}.{output.name}" if output.name in taken else output.name
            yield replace(output, name=claim_name(name, taken))


def _notes(copies: Sequence[RankCopy], parts: Sequence[Part]) -> list[Note]:
    """Return the notes of all parts; a note that some lack names its ranks, or its stages."""
    copies_by_text: dict[str, tuple[Note, list[int]]] = {}
    for number, copy in enumerate(copies):
        for note in copy.graph.notes:
            copies_by_text.setdefault(note.text, (note, []))[1].append(number)
    notes = []
    for note, numbers in copies_by_text.values():
        ranks = ranks_text(rank for number in numbers for rank in copies[number].numbers)
        owner = str(parts[numbers[0]]) if len(numbers) == 1 else ranks
        notes.append(
            note if len(numbers) == len(copies) else replace(note, text=f"{owner}: {note.text}")
        )
    return notes


def _differences(
    copies: Sequence[RankCopy], groups: Sequence[Sequence[Graph]], stages: Sequence[RankStages]
) -> Iterator[Note]:
    """Yield a note for each part that differs from an earlier one of the same stages."""
    firsts: dict[tuple[int, ...], int] = {}
    for number, (copy, own) in enumerate(zip(copies, stages, strict=True)):
        first = firsts.setdefault(own.numbers, number)
        graph, other = groups[number][0], groups[first][0]
        if first != number and structure_of(graph) != structure_of(other):
            difference = find_difference(graph, other)
            verb = "differs" if len(copy.numbers) == 1 else "differ"
            yield Note(
                f"{copy.ranks} {verb} from {copies[first].ranks} {difference.text}",
                node=None if difference.at is None else copy.graph.nodes[difference.at],
            )


def _name(copies: Sequence[RankCopy], order: Iterable[Node]) -> None:
    """Rename the nodes of several parts: names of the user stay, later equal ones get their ranks.

    Numbers are assigned anew, in the order of the merged graph.
    """
    if len(copies) == 1:
        return
    names = Names()
    seen: set[str] = set()
    named: set[Node] = set()
    for copy in copies:
        for node in copy.graph.nodes:
            if node.kind != "op" and not node.name.isdecimal():
                later = node.name in seen
                node.name = names.unique(f"{copy.ranks}.{node.name}" if later else node.name)
                seen.add(node.name)
                named.add(node)
    for node in order:
        if node not in named:
            node.name = names.number()


# -- differences between equivalent ranks -------------------------------------------------------


def _tell_differences(merged: Sequence[Node], group: Sequence[Graph]) -> None:
    """Record on nodes how the ranks that they represent differ.

    Args:
        merged: Copies of the leading nodes of the first of these graphs, which are changed.
        group: The graphs of equivalent ranks.
    """
    # Graphs that share their node list are compared once.
    shared: dict[int, tuple[list[int], list[Node]]] = {}
    for graph in group:
        shared.setdefault(id(graph.nodes), ([], graph.nodes))[0].append(graph.rank)
    for index, node in enumerate(merged):
        ranks_by_text: dict[str, dict[str, list[int]]] = {}
        groups: dict[tuple[int, ...], None] = {}
        for ranks, nodes in shared.values():
            counterpart = nodes[index]
            texts = {
                "shapes_by_rank": ", ".join([_shape(shape) for shape in sizes_of(counterpart)]),
                "arguments_by_rank": ", ".join(constants_of(counterpart)),
                "parts_by_rank": ", ".join(parts_of(counterpart)),
                "names_by_rank": counterpart.name if counterpart.kind in STATE else "",
            }
            for name, text in texts.items():
                ranks_by_text.setdefault(name, {}).setdefault(text, []).extend(ranks)
            if counterpart.collective is not None and counterpart.collective.peer is None:
                groups[counterpart.collective.ranks] = None
        for name, by_text in ranks_by_text.items():
            if len(by_text) > 1:
                node.attributes[name] = _some(
                    [f"{text or 'none'} on {ranks_text(ranks)}" for text, ranks in by_text.items()]
                )
        if len(groups) > 1:
            node.attributes["groups"] = _some([ranks_text(ranks) for ranks in groups])


def _shape(shape: object) -> str:
    return repr(shape).replace("None", "?") if shape is not None else "?"


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_TOLD
    return "; ".join([*texts[:_MOST_TOLD], f"and {more:,} more"] if more > 0 else texts)


# -- collectives and messages ------------------------------------------------------------------


def _join(merged: Graph, joint: Joint, copy_of: Mapping[Node, RankCopy]) -> None:
    """Replace each collective by one node, and connect receivers to senders."""
    editor = Editor(merged)
    for nodes in joint.collectives:
        _join_collective(editor, nodes, copy_of)
        nodes[0].scope = _phase_around(nodes)
    editor.apply()
    joined = {nodes[0] for nodes in joint.collectives}
    read = {value for node in merged.nodes for value in node.inputs}
    for node in merged.nodes:
        if node.op == "wait" and read.isdisjoint(node.outputs):
            # In the box of its rank, a wait for a last result would be on a cycle of boxes.
            node.scope = next(
                (value.producer.scope for value in node.inputs if value.producer in joined),
                node.scope,
            )
    for sender, receiver in joint.messages:
        payload = (sender.inputs or receiver.outputs)[0]
        message = replace(payload, producer=sender, index=len(sender.outputs))
        sender.outputs.append(message)
        receiver.inputs.append(message)
        receiver.arguments.append(Argument("message", message))


def _phase_around(nodes: Iterable[Node]) -> Scope | None:
    """Return the phase box that contains all of the nodes, or None for the top level."""
    outermost = {scope for node in nodes for scope in [None, *self_and_ancestors(node.scope)][-1:]}
    phase_box = outermost.pop()
    return None if outermost or phase_box is None or phase_box.phase == "forward" else phase_box


def _join_collective(
    editor: Editor, nodes: Sequence[Node], copy_of: Mapping[Node, RankCopy]
) -> None:
    into, *others = nodes
    assert into.collective is not None, "only collectives are joined"
    ranks = ranks_text(rank for node in nodes for rank in copy_of[node].numbers)
    kernels, arguments = into.kernels, list(into.arguments)
    for node in others:
        assert node.collective is not None, "only collectives are joined"
        editor.fold(node, into)
        # Constant arguments are those of the first node; the other nodes add only their tensors.
        values = list(node.inputs)
        if values:
            tensors = values[0] if len(values) == 1 else values
            arguments.append(Argument(copy_of[node].ranks.replace(" ", "_"), tensors))
        into.allocated_bytes += node.allocated_bytes
        into.flops = None if into.flops is None else into.flops + (node.flops or 0)
        into.collective = replace(
            into.collective,
            input_bytes=max(into.collective.input_bytes, node.collective.input_bytes),
            output_bytes=max(into.collective.output_bytes, node.collective.output_bytes),
            asynchronous=into.collective.asynchronous or node.collective.asynchronous,
        )
    into.kernels, into.arguments = kernels, arguments
    for value in into.outputs:
        value.device = device_on(ranks, split_device(value.device)[1])
