"""The function library: boxes with the same inside as one function of the GraphDef, and its calls.

The page shows the function in its Functions panel, with its usages, and puts a copy of it in
the place of each call that is opened. It does so only for some forms, and fails as a whole for
others (render.ts, `buildSubhierarchy`): a call reads one node per `input_arg`, none of them
drawn as a circle; what reads a call reads an output that the function has; each output is a
node of its name; and nothing waits for a call, or is waited for by one. A box for which that
cannot be had stays a box.

Source: tensorboard/plugins/graph/tf_graph_common/render.ts, graph.ts (`build`)
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from tbscope.drawing.unique import UniqueNames
from tbscope.drawing.wanted import Wanted, wanted_definitions
from tbscope.functions.definition import CallStep, Definition, Read, Ref
from tbscope.functions.functions import Functions
from tbscope.ir.scopes import Scope
from tbscope.page.constants import ASIDE_OP, SERIES_SIZE
from tbscope.page.flow import lost_exits
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.ops import is_embedded, op_type
from tbscope.page.scenes import read_scenes

__all__ = ["with_library"]

_SHAPES = "_output_shapes"
_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")
# What the page would fold into a stack, in which calls are not drawn as boxes.
_NUMBERED = re.compile(r"\D*[0-9]+")
# As the page reads a reference (graph.ts, `INPUT_NAME_PART_MATCHER`).
_REFERENCE = re.compile(r"([^:]+):([0-9]+)")


def with_library(
    graph_def: GraphDef,
    functions: Functions,
    boxes: Mapping[Scope, str],
    wanted: Wanted,
) -> GraphDef:
    """Return a GraphDef in which boxes with the same inside are calls of one function.

    Args:
        graph_def: How the graph is drawn without functions; it stays as it is.
        functions: The definitions of the graph.
        boxes: The name of the box of each scope.
        wanted: Which definitions become functions.
    """
    chosen = wanted_definitions(functions, wanted)
    plain: set[str] = set()
    while True:
        library = _Library(graph_def, functions)
        for definition in chosen:
            # No two scopes have one box; one that is called nothing has none.
            found = [box for use in definition.uses if use.scope and (box := boxes.get(use.scope))]
            found = [box for box in found if box not in plain]
            if len(found) > 1:
                library.share(found, definition)
        message = library.message()
        lost = library.boxes_in(_levels_that_lose(message))
        if not lost:
            return message
        # A call has lines that its box has not: where they are too many, boxes stay.
        plain |= lost


def _levels_that_lose(graph_def: GraphDef) -> set[str]:
    """Return the names of the boxes in which the page cuts off an end of the flow."""
    hierarchy = Hierarchy.of(graph_def)
    found: set[str] = set()
    for scene in read_scenes(hierarchy):
        # The node that tells of the whole may read calls, and is put aside in any case.
        if any(scene.aside.get(glyph) != "NoOp" for glyph in lost_exits(hierarchy, scene)):
            found.add(scene.box.name)
    return found


class _Ref(NamedTuple):
    """What a node reads: a node, by its name, and which output; None where it only waits."""

    name: str
    output: int | None


@dataclass(slots=True, eq=False)
class _Item:
    """A node of the GraphDef as it is now."""

    name: str
    op: str
    refs: list[_Ref]
    node: NodeDef


@dataclass(slots=True, eq=False)
class _Inside:
    """What stands in one box.

    Attributes:
        box: Its name.
        held: Its nodes, in order.
        items: Those of them that are no circles, as a function has none.
        tied: The boxes that read circles of this one, and those of which this one reads some.
        arguments: What its nodes read outside, in order of first use.
        read: What is read outside, by its name in the box.
    """

    box: str
    held: list[_Item] = field(default_factory=list)
    items: list[_Item] = field(default_factory=list)
    tied: "set[_Inside]" = field(default_factory=set)
    arguments: dict[_Ref, int] = field(default_factory=dict)
    read: set[_Ref] = field(default_factory=set)

    def within(self, name: str) -> str | None:
        """Return the name of a node from the box on; None for one outside."""
        cut = len(self.box) + 1
        return name[cut:] if name.startswith(f"{self.box}/") else None

    def form(self) -> tuple[object, ...]:
        """Return what is equal for boxes with the same inside."""
        told = []
        inner = {self.within(item.name) for item in self.items}
        for item in self.items:
            refs: list[object] = []
            for ref in item.refs:
                within = self.within(ref.name)
                if ref in self.arguments:
                    refs.append(self.arguments[ref])
                elif within in inner:
                    refs.append((within, ref.output))
            told.append((self.within(item.name), item.op, tuple(refs)))
        return tuple(told)


class _Library:
    """A GraphDef whose boxes become calls.

    Args:
        graph_def: The GraphDef; it stays as it is.
        functions: The definitions of its graph.
    """

    def __init__(self, graph_def: GraphDef, functions: Functions) -> None:
        self._graph_def = graph_def
        self._reads: dict[Definition, list[int]] = {}
        for definition in functions:
            self._reads[definition] = _reads(definition, self._reads)
        self._result = GraphDef()
        self._items = {
            node.name: _Item(node.name, node.op, list(_refs(node)), node) for node in graph_def.node
        }
        self._calls: list[_Item] = []
        self._boxes: dict[str, str] = {}
        self._names = UniqueNames(
            {item.op for item in self._items.values()},
            numbered=lambda title, number: f"{title}_{number}",
        )

    def share(self, boxes: list[str], definition: Definition) -> None:
        """Make a function of each inside that several of these boxes have."""
        left = boxes
        while True:
            groups: dict[tuple[object, ...], list[_Inside]] = defaultdict(list)
            for inside in self._insides(left):
                groups[inside.form()].append(inside)
            several = [one for group in groups.values() if len(one := _closed(group)) > 1]
            if several:
                self._make(several[0], definition)
            if len(several) < 2:
                return
            # Boxes may read each other, and what was a box is a call now.
            made = {inside.box for inside in several[0]}
            left = [box for box in left if box not in made]

    # -- boxes ------------------------------------------------------------------------

    def _insides(self, boxes: list[str]) -> list[_Inside]:
        """Return the insides of boxes that can be calls."""
        found = {box: _Inside(box) for box in boxes}
        stands: dict[str, _Inside] = {}
        for item in self._items.values():
            inside = _box_around(item.name, found)
            if inside is not None:
                inside.held.append(item)
                if not is_embedded(item.op):
                    inside.items.append(item)
                stands[item.name] = inside
        broken: set[_Inside] = {inside for inside in found.values() if not _is_drawn(inside)}
        for item in self._items.values():
            here = stands.get(item.name)
            for ref in item.refs:
                there = stands.get(ref.name)
                source = self._items.get(ref.name)
                if source is None or here is there:
                    continue
                embedded = is_embedded(source.op)
                if embedded and here is not None and there is not None:
                    # A module that is called twice has its circles in the first of its boxes.
                    here.tied.add(there)
                    there.tied.add(here)
                    continue
                if here is not None:
                    if ref.output is None or embedded or is_embedded(item.op):
                        broken.add(here)
                    else:
                        here.arguments.setdefault(ref, len(here.arguments))
                if there is not None:
                    name = there.within(ref.name)
                    if ref.output is None or embedded or name is None:
                        broken.add(there)
                    else:
                        there.read.add(_Ref(name, ref.output))
        return [inside for inside in found.values() if inside not in broken]

    # -- functions --------------------------------------------------------------------

    def _make(self, group: list[_Inside], definition: Definition) -> None:
        """Make a function of the inside that boxes have in common, and calls of the boxes."""
        first = group[0]
        title = _ILLEGAL.sub("_", op_type(definition.name))
        name = self._names.claim(title.lstrip("_") or "Function")
        labels = UniqueNames(
            {(first.within(item.name) or "").partition("/")[0] for item in first.items},
            numbered=lambda label, number: f"{label}_{number}",
        )
        count = len(first.arguments)
        arguments = [labels.claim(label) for label in self._labels(definition, count)]
        read = {ref for inside in group for ref in inside.read}
        order = {first.within(item.name): at for at, item in enumerate(first.items)}
        outputs = sorted(read, key=lambda ref: (order[ref.name], ref.output or 0))
        given = [labels.claim("out") for _ in outputs]
        function = self._result.library.function.add()
        function.signature.name = name
        for label in arguments:
            function.signature.input_arg.add(name=label)
        for label in given:
            function.signature.output_arg.add(name=label)
        # Circles are left out: the page would draw each of them twice, once of it loose.
        for at, item in enumerate(first.items):
            node = function.node_def.add()
            node.CopyFrom(item.node)
            node.name = first.within(item.name) or item.name
            del node.input[:]
            refs = [ref for ref in item.refs if not self._is_circle(ref)]
            node.input.extend(_texts(_inner(refs, first, arguments)))
            for key in _differing([inside.items[at].node for inside in group]):
                del node.attr[key]
        for label, ref in zip(given, outputs, strict=True):
            node = function.node_def.add(name=label, op="Output")
            node.input.extend(_texts([ref]))
            shapes = [self._shape(inside, ref) for inside in group]
            if all(shape == shapes[0] for shape in shapes):
                # A line from a call has the label of this node.
                node.attr[_SHAPES].list.shape.add().CopyFrom(shapes[0])
        places = {ref: at for at, ref in enumerate(outputs)}
        self._call(group, name, places)

    def _is_circle(self, ref: _Ref) -> bool:
        source = self._items.get(ref.name)
        return source is not None and is_embedded(source.op)

    def _labels(self, definition: Definition, count: int) -> Iterator[str]:
        """Yield what the inputs of a function are called: by forward's parameters, if possible.

        Views that are not drawn may have made two inputs of one, or one of two.
        """
        read = [definition.inputs[place] for place in self._reads[definition]]
        names = [one.name for one in read if one.kind in ("argument", "captured")]
        for at in range(count):
            plain = names[at] if len(names) == count else "input"
            yield _ILLEGAL.sub("_", plain).lstrip("_") or "input"

    def _call(self, group: list[_Inside], function: str, places: Mapping[_Ref, int]) -> None:
        """Put calls in the place of boxes."""
        apart = _in_a_row([inside.box for inside in group])
        calls: dict[str, _Item] = {}
        gone: dict[str, _Inside] = {}
        named: dict[_Inside, str] = {}
        for inside in group:
            name = inside.box
            if name in apart:
                name += "_"
            while name in self._items:
                name += "_"
            named[inside] = name
            self._boxes[name] = inside.box
            node = NodeDef(name=name, op=function)
            self._add_shapes(node, inside, places)
            call = _Item(name, function, list(inside.arguments), node)
            calls[inside.held[0].name] = call
            gone.update((item.name, inside) for item in inside.held)
        self._calls += calls.values()
        items: dict[str, _Item] = {}
        for name, item in self._items.items():
            if name in calls:
                items[calls[name].name] = calls[name]
            if name not in gone:
                items[name] = item
        self._items = items
        for item in items.values():
            item.refs = [
                _outer(ref, gone[ref.name], named, places) if ref.name in gone else ref
                for ref in item.refs
            ]

    def _add_shapes(self, node: NodeDef, inside: _Inside, places: Mapping[_Ref, int]) -> None:
        """Tell the shape of each output of a call."""
        for ref in places:
            node.attr[_SHAPES].list.shape.add().CopyFrom(self._shape(inside, ref))

    def _shape(self, inside: _Inside, ref: _Ref) -> TensorShapeProto:
        """Return the shape of something that a box gives."""
        source = self._items[f"{inside.box}/{ref.name}"].node
        known = source.attr[_SHAPES].list.shape if _SHAPES in source.attr else ()
        if ref.output is not None and ref.output < len(known):
            return known[ref.output]
        return TensorShapeProto(unknown_rank=True)

    # -- the result -------------------------------------------------------------------

    def boxes_in(self, levels: Collection[str]) -> set[str]:
        """Return the boxes in the place of which calls are drawn right in one of these boxes.

        Where there are none, those that are drawn anywhere in one of them.
        """
        found = {box for call, box in self._boxes.items() if call.rpartition("/")[0] in levels}
        if found or not levels:
            return found
        if "" in levels:
            return set(self._boxes.values())
        above = tuple(f"{level}/" for level in levels)
        return {box for call, box in self._boxes.items() if call.startswith(above)}

    def message(self) -> GraphDef:
        """Return the GraphDef with its functions and calls."""
        result = self._result
        if not self._calls:
            return self._graph_def
        self._have_drawn([call for call in self._calls if self._items.get(call.name) is call])
        result.versions.CopyFrom(self._graph_def.versions)
        for item in self._items.values():
            node = result.node.add()
            node.CopyFrom(item.node)
            node.name = item.name
            del node.input[:]
            node.input.extend(_texts(item.refs))
        return result

    def _have_drawn(self, calls: list[_Item]) -> None:
        """Have the page put copies in the place of calls before it takes functions out of its flow.

        From then on its copies would stand beside the flow. It makes those first that lines
        at its top level begin in: so the node that tells of the whole reads one call of each box.
        """
        above = {
            call.name.rpartition("/")[0]: call
            for call in calls
            if "/" in call.name and _SHAPES in call.node.attr
        }
        called = {call.name for call in calls}
        for item in self._items.values():
            top = item.name.partition("/")[0]
            for ref in item.refs:
                if ref.name in called and ref.name.partition("/")[0] != top:
                    # The page makes those beside this one anyway.
                    above.pop(ref.name.rpartition("/")[0], None)
        if not above:
            return
        refs = [_Ref(call.name, 0) for call in above.values()]
        whole = next(
            (item for item in self._items.values() if item.op == ASIDE_OP and "/" not in item.name),
            None,
        )
        if whole is None:
            name = "Functions"
            while name in self._items:
                name += "_"
            whole = self._items[name] = _Item(name, ASIDE_OP, [], NodeDef(name=name, op=ASIDE_OP))
        whole.refs = [*whole.refs, *refs]


def _reads(definition: Definition, known: Mapping[Definition, list[int]]) -> list[int]:
    """Return the inputs that operations of a definition, or below it, read, by their first use."""
    found: dict[int, None] = {}
    for step in definition.steps:
        refs: Iterable[Ref] = step.inputs
        if isinstance(step, CallStep):
            refs = [step.inputs[place] for place in known[step.definition]]
        found.update({ref.place: None for ref in refs if isinstance(ref, Read)})
    return list(found)


def _box_around(name: str, boxes: Mapping[str, _Inside]) -> _Inside | None:
    """Return the innermost of some boxes in which a node stands."""
    above = name.rpartition("/")[0]
    while above:
        found = boxes.get(above)
        if found is not None:
            return found
        above = above.rpartition("/")[0]
    return None


def _closed(group: list[_Inside]) -> list[_Inside]:
    """Return the boxes of a group whose circles are read in boxes of the group alone."""
    kept = set(group)
    while out := {inside for inside in kept if not inside.tied <= kept}:
        kept -= out
    return [inside for inside in group if inside in kept]


def _is_drawn(inside: _Inside) -> bool:
    return any(item.op != ASIDE_OP for item in inside.items)


def _in_a_row(boxes: list[str]) -> set[str]:
    """Return those that the page would fold into a stack, where it draws no copies as boxes."""
    beside: dict[str, list[str]] = defaultdict(list)
    for box in boxes:
        above, _, label = box.rpartition("/")
        if _NUMBERED.fullmatch(label):
            beside[above].append(box)
    return {box for row in beside.values() if len(row) >= SERIES_SIZE for box in row}


def _outer(
    ref: _Ref, inside: _Inside, named: Mapping[_Inside, str], places: Mapping[_Ref, int]
) -> _Ref:
    """Return what is read of a call instead of something in the box that it was."""
    within = inside.within(ref.name)
    if ref.output is None or within is None:
        return _Ref(named[inside], None)
    return _Ref(named[inside], places[_Ref(within, ref.output)])


def _inner(refs: Iterable[_Ref], inside: _Inside, arguments: list[str]) -> Iterator[_Ref]:
    """Yield what a node reads as it stands in the function."""
    for ref in refs:
        within = inside.within(ref.name)
        if within is not None:
            yield _Ref(within, ref.output)
        elif ref.output is not None:
            yield _Ref(arguments[inside.arguments[ref]], 0)


def _differing(nodes: list[NodeDef]) -> list[str]:
    """Return the keys of attributes in which nodes differ."""
    first, *others = nodes
    found = []
    for key, value in first.attr.items():
        if any(key not in other.attr or value != other.attr[key] for other in others):
            found.append(key)
    return found


def _refs(node: NodeDef) -> Iterator[_Ref]:
    for text in node.input:
        if text.startswith("^"):
            yield _Ref(text[1:], None)
        elif text:
            found = _REFERENCE.fullmatch(text)
            yield _Ref(found[1], int(found[2])) if found else _Ref(text, 0)


def _texts(refs: Iterable[_Ref]) -> Iterator[str]:
    """Yield references, data first, with an empty one between two of the same node."""
    last = None
    for ref in sorted(refs, key=lambda ref: ref.output is None):
        if ref.name == last:
            yield ""
        last = ref.name
        if ref.output is None:
            yield f"^{ref.name}"
        else:
            yield f"{ref.name}:{ref.output}" if ref.output else ref.name
