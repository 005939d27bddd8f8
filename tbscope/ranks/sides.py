"""Draws the parts of a run side by side, and joins what their ranks did together."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tbscope.ir.builder import Names
from tbscope.ir.editing import Editor, replace_nodes
from tbscope.ir.facts import Part, device_on, ranks_text, split_device
from tbscope.ir.graph import Argument, Graph, Node, Note, Output, Value
from tbscope.ir.nodes import constants_of
from tbscope.ir.regions import STATE
from tbscope.ir.scopes import Scope, ScopePart, upward
from tbscope.ranks.alike import sizes_of
from tbscope.ranks.copies import RankCopy
from tbscope.ranks.join import Joint, find_joints
from tbscope.ranks.shares import figures_of, share_notes, whole_model, with_stages

__all__ = ["side_by_side"]

_MOST_TOLD = 6
# More collectives between parts than these, at one place, stand in a box of their own.
_MOST_IN_A_ROW = 8


def side_by_side(groups: Sequence[Sequence[Graph]]) -> Graph:
    """Return the graph of groups of ranks, each drawn as its first one.

    Args:
        groups: Graphs of ranks that are alike. A single group has no box around it.
    """
    parts = [Part(tuple([graph.rank for graph in group])) for group in groups]
    parts = with_stages(parts, [group[0] for group in groups])
    merged = Graph(groups[0][0].name)
    whole = whole_model(list(zip(parts, groups, strict=True)))
    copies: list[RankCopy] = []
    phases: dict[ScopePart, Scope] = {}
    number = 0
    for group, part in zip(groups, parts, strict=True):
        box = _box_of(part, parts) if len(groups) > 1 else None
        copy = RankCopy(group[0], part.ranks, box, number, phases)
        number = copy.next_number
        _tell_differences(copy.graph, group)
        copies.append(copy)
        merged.calls += copy.graph.calls
        merged.inputs += copy.graph.inputs
        # Each part is a model of its own.
        merged.modules += copy.graph.modules
        merged.signatures |= copy.graph.signatures
        merged.uncounted |= copy.graph.uncounted
        told = part._replace(scope="" if copy.box is None else copy.box.path)
        merged.parts += _with_figures(group, told, whole)
    if len(copies) == 1:
        merged.profile = copies[0].graph.profile
    merged.outputs = _outputs(copies)
    merged.notes = _notes(copies)
    part_of = {rank: place for place, part in enumerate(parts) for rank in part.ranks}
    joint = find_joints([copy.graph.nodes for copy in copies], part_of)
    _name(copies, joint.order)
    replace_nodes(merged, joint.order)
    _join(merged, joint, {node: copy for copy in copies for node in copy.graph.nodes})
    standing = {scope.path for scope in merged.scopes()}
    # Of a rank that does nothing but with others, nothing is left in its box.
    merged.parts = tuple(
        [part if part.scope in standing else part._replace(scope="") for part in merged.parts]
    )
    merged.notes += share_notes(merged.parts)
    return merged


def _box_of(part: Part, parts: Sequence[Part]) -> str:
    """Return what the box of a part is called: short, as the page cuts what is long."""
    alone = part.stage is not None and [one.stage for one in parts].count(part.stage) == 1
    return f"stage {part.stage}" if alone else str(part)


def _with_figures(group: Sequence[Graph], part: Part, whole: Mapping[str, int]) -> tuple[Part, ...]:
    """Return a part for all ranks of a group that hold and do equally much."""
    found: dict[tuple[tuple[str, int], ...], list[int]] = {}
    known: dict[int, dict[str, int]] = {}
    for graph in group:
        figures = known.get(id(graph.nodes))
        if figures is None:
            figures = known[id(graph.nodes)] = figures_of(graph)
        found.setdefault(tuple(figures.items()), []).append(graph.rank)
    return tuple(
        part._replace(ranks=tuple(ranks), figures={**dict(figures), **whole})
        for figures, ranks in found.items()
    )


def _outputs(copies: Sequence[RankCopy]) -> list[Output]:
    found: dict[str, Output] = {}
    for copy in copies:
        for output in copy.graph.outputs:
            name = output.name
            if name in found:
                name = f"{copy.ranks}.{name}"
            while name in found:
                name += "~"
            found[name] = replace(output, name=name)
    return list(found.values())


def _notes(copies: Sequence[RankCopy]) -> list[Note]:
    """Return the notes of all parts; one that not all have tells whose it is."""
    texts: dict[str, list[tuple[RankCopy, Note]]] = {}
    for copy in copies:
        for note in copy.graph.notes:
            texts.setdefault(note.text, []).append((copy, note))
    notes = []
    for text, told in texts.items():
        note = told[0][1]
        holders = dict.fromkeys(copy for copy, _ in told)
        if len(holders) < len(copies):
            ranks = ranks_text(rank for copy in holders for rank in copy.numbers)
            note = replace(note, text=f"{ranks}: {text}")
        notes.append(note)
    return notes


def _name(copies: Sequence[RankCopy], order: Iterable[Node]) -> None:
    """Name the nodes anew: what the user knows as it was, of a later part with its ranks."""
    if len(copies) == 1:
        return
    names = Names()
    known: set[str] = set()
    named: set[Node] = set()
    for copy in copies:
        for node in copy.graph.nodes:
            if node.kind == "op" or node.name.isdecimal():
                continue
            if node.name in known:
                node.name = f"{copy.ranks}.{node.name}"
            node.name = names.unique(node.name)
            known.add(node.name)
            named.add(node)
    for node in order:
        if node not in named:
            node.name = names.number()


# -- what differs between ranks that are alike -----------------------------------------------


def _tell_differences(merged: Graph, group: Sequence[Graph]) -> None:
    """Note on the nodes of a graph what differs between the ranks for which it stands.

    Args:
        merged: The copy of the first of these graphs; its nodes are changed.
        group: The graphs of ranks that are alike.
    """
    # Ranks that recorded the same may share their nodes.
    shared: dict[int, tuple[list[int], list[Node]]] = {}
    for graph in group:
        shared.setdefault(id(graph.nodes), ([], graph.nodes))[0].append(graph.rank)
    for place, node in enumerate(merged.nodes):
        found: dict[str, dict[str, list[int]]] = {}
        groups: dict[tuple[int, ...], None] = {}
        for ranks, nodes in shared.values():
            twin = nodes[place]
            told = {
                "shapes_by_rank": ", ".join([_shape(shape) for shape in sizes_of(twin)]),
                "arguments_by_rank": ", ".join(constants_of(twin)),
                "names_by_rank": twin.name if twin.kind in STATE else "",
            }
            for name, text in told.items():
                found.setdefault(name, {}).setdefault(text, []).extend(ranks)
            if twin.collective is not None and twin.collective.peer is None:
                groups[twin.collective.ranks] = None
        for name, by_text in found.items():
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


# -- what ranks did together ----------------------------------------------------------------


def _join(merged: Graph, joint: Joint, copy_of: Mapping[Node, RankCopy]) -> None:
    """Make each collective one node, and have what is received read what was sent."""
    places = [_phase_around(nodes) for nodes in joint.collectives]
    boxes = {
        place: Scope(
            ScopePart("between ranks"),
            parent=place,
            kind="rank",
            phase="forward" if place is None else place.phase,
        )
        for place, count in Counter(places).items()
        if count > _MOST_IN_A_ROW
    }
    editor = Editor(merged)
    for nodes, place in zip(joint.collectives, places, strict=True):
        _join_collective(editor, nodes, copy_of)
        nodes[0].scope = boxes.get(place, place)
    editor.apply()
    for sender, receiver in joint.messages:
        held = (sender.inputs or receiver.outputs)[0]
        message = Value(
            sender, len(sender.outputs), held.shape, held.dtype, held.device, held.sharding
        )
        sender.outputs.append(message)
        receiver.inputs.append(message)
        receiver.arguments.append(Argument("message", message))


def _phase_around(nodes: Iterable[Node]) -> Scope | None:
    """Return the box of the phase in which all of some nodes stand; None for the top level."""
    around = {scope for node in nodes for scope in [None, *upward(node.scope)][-1:]}
    place = around.pop()
    return None if around or place is None or place.phase == "forward" else place


def _join_collective(
    editor: Editor, nodes: Sequence[Node], copy_of: Mapping[Node, RankCopy]
) -> None:
    into, *others = nodes
    assert into.collective is not None, "only collectives are joined"
    ranks = ranks_text(rank for node in nodes for rank in copy_of[node].numbers)
    kernels, arguments = into.kernels, list(into.arguments)
    told = {copy_of[node].ranks: sizes_of(node) for node in nodes}
    for node in others:
        assert node.collective is not None, "only collectives are joined"
        editor.fold(node, into)
        # Of what it is given, the constants are those of the first.
        values = list(node.inputs)
        if values:
            held = values[0] if len(values) == 1 else values
            arguments.append(Argument(copy_of[node].ranks.replace(" ", "_"), held))
        into.allocated_bytes += node.allocated_bytes
        into.flops = None if into.flops is None else into.flops + (node.flops or 0)
        into.collective = replace(
            into.collective,
            input_bytes=max(into.collective.input_bytes, node.collective.input_bytes),
            output_bytes=max(into.collective.output_bytes, node.collective.output_bytes),
            asynchronous=into.collective.asynchronous or node.collective.asynchronous,
        )
    into.kernels, into.arguments = kernels, arguments
    if len(set(told.values())) > 1:
        into.attributes["shapes_by_rank"] = "; ".join(
            f"{', '.join(map(str, shapes))} on {one}" for one, shapes in told.items()
        )
    for value in into.outputs:
        value.device = device_on(ranks, split_device(value.device)[1])
