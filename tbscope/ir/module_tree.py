"""The tree of modules: those of a graph as their author nested them, with all that is in each.

A part is a module with all of its calls, called or not, or a block by hand. Cards, overlays and the
summary are made of one such tree; each parameter counts once in every part around it.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias

from tbscope.ir.graph import Call, Graph, Module, Node, Parameter
from tbscope.ir.nodes import STATE
from tbscope.ir.scopes import Scope, upward

__all__ = [
    "Holdings",
    "ModuleTree",
    "Part",
    "PartKind",
    "held_below",
    "lists_parameters",
    "numbers_in",
    "parameter_key",
    "parameters_in",
    "walk",
]

PartKind: TypeAlias = Literal["graph", "module", "container", "scope", "unused"]
"""The whole graph, a module that was called, one that was not though something in it ran, a block
by hand, or a module in which nothing ran."""

_Place: TypeAlias = tuple[object, object]


@dataclass(slots=True, eq=False)
class Holdings:
    """Sums over parameters and buffers, each counted once.

    Attributes:
        parameters: Numbers in parameters.
        trainable: Those of parameters that require a gradient.
        shared: Those of parameters that a module outside of the part has, too.
        parameter_bytes: Bytes of the parameters.
        buffers: Numbers in buffers.
        buffer_bytes: Bytes of the buffers.
        tensors: How many parameters and buffers they are.
    """

    parameters: int = 0
    trainable: int = 0
    shared: int = 0
    parameter_bytes: int = 0
    buffers: int = 0
    buffer_bytes: int = 0
    tensors: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        return self.parameter_bytes + self.buffer_bytes

    def add(self, parameter: Parameter) -> None:
        """Count a parameter or buffer; one that is not initialised yet has no numbers."""
        count = numbers_in(parameter)
        self.tensors += 1
        if parameter.kind == "buffer":
            self.buffers += count
            self.buffer_bytes += parameter.size_bytes
            return
        self.parameters += count
        self.parameter_bytes += parameter.size_bytes
        if parameter.requires_grad:
            self.trainable += count

    def add_all(self, other: "Holdings") -> None:
        """Add the sums of another one; a shared parameter may be shared no longer."""
        self.parameters += other.parameters
        self.trainable += other.trainable
        self.parameter_bytes += other.parameter_bytes
        self.buffers += other.buffers
        self.buffer_bytes += other.buffer_bytes
        self.tensors += other.tensors


def numbers_in(parameter: Parameter) -> int:
    """Return how many numbers a parameter or buffer has; none before it is initialised."""
    shape = parameter.shape
    if shape is None:
        return 0
    sizes: Any = shape
    # Few are unknown; to look at each by itself takes three times as long.
    return math.prod([size for size in shape if size is not None] if None in shape else sizes)


@dataclass(slots=True, eq=False, repr=False)
class Part:
    """A module with its calls, or a block by hand.

    Attributes:
        kind: What it is.
        label: The name of its class, or of the block.
        class_name: The full name of its class; empty for what is no module.
        attribute: The name under which its holder has it; None for a root and for a block.
        name: Its qualified name; None for what no module registers.
        parent: The part around it; None for the outermost.
        children: The parts in it, as the author wrote them.
        held: Its own parameters and buffers, those of its children not among them.
        borrowed: Parameters and buffers of children that are parts of another module.
        scopes: The scopes of its calls.
        calls: Its calls.
        holds: The sums over the parameters and buffers in it and below it.
    """

    label: str
    _: KW_ONLY
    parent: "Part | None" = None
    kind: PartKind = "unused"
    class_name: str = ""
    attribute: str | None = None
    name: str | None = None
    held: tuple[Parameter, ...] = ()
    borrowed: tuple[Parameter, ...] = ()
    children: "list[Part]" = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    holds: Holdings = field(default_factory=Holdings)

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.parent.children.append(self)

    @property
    def title(self) -> str:
        """Its attribute; a root is called by its class, a block by its name."""
        return self.label if self.attribute is None else self.attribute

    @property
    def unregistered(self) -> bool:
        """Whether it is a module that no module registers, so that no model counts it."""
        return self.kind in ("module", "container") and self.name is None


def walk(root: Part) -> Iterator[Part]:
    """Yield a part and all below it, parents first, in the order of the author."""
    pending = [root]
    while pending:
        part = pending.pop()
        yield part
        pending.extend(reversed(part.children))


def held_below(root: Part) -> Iterator[Parameter]:
    """Yield the parameters below a module, each with its name from there on (`qkv.weight`).

    Those that no module registers are not among them.
    """
    yield from root.borrowed
    start = len(root.name) + 1 if root.name else 0
    for part in walk(root):
        if part is not root and not part.unregistered:
            for parameter in (*part.held, *part.borrowed):
                yield parameter._replace(name=f"{part.name}.{parameter.name}"[start:])


def parameter_key(part: Part, parameter: Parameter) -> int | str:
    """Return the key of a parameter among all others; tied ones have the same."""
    if parameter.number >= 0:
        return parameter.number
    return f"{part.label if part.name is None else part.name}.{parameter.name}"


def parameters_in(graph: Graph) -> dict[int | str, Parameter]:
    """Return the parameters of all modules of a graph, each once, by their keys."""
    found: dict[int | str, Parameter] = {}
    for part in walk(ModuleTree(graph).top):
        for parameter in part.held:
            if parameter.kind == "parameter":
                found.setdefault(parameter_key(part, parameter), parameter)
    return found


def lists_parameters(graph: Graph) -> bool:
    """Whether the modules of a graph list their parameters; those of a read drawing do not."""
    return bool(graph.modules) or any(call.parameters for call in graph.calls)


class ModuleTree:
    """The parts of a graph, and the part of each scope.

    Args:
        graph: The graph.
        count_nodes: Whether the nodes of parameters and buffers count in the parts around them, for
            a graph whose modules do not list them.

    Attributes:
        top: The part around everything.
        part_of: The part of each scope. Several calls of a module have one.
    """

    def __init__(self, graph: Graph, *, count_nodes: bool = False) -> None:
        self.top = Part(graph.name, kind="graph")
        self.part_of: dict[Scope, Part] = {}
        self._parts: dict[_Place, Part] = {}
        # Models without a name, by number.
        self._roots: list[Module] = []
        self._add_modules(graph)
        self._add_scopes(graph)
        for call in graph.calls:
            part = self.part_of[call.scope]
            if not part.calls and not part.class_name:
                part.class_name = call.class_name
                part.held = call.parameters
            part.calls.append(call)
        if count_nodes:
            for number, node in enumerate(graph.nodes):
                if node.kind in STATE:
                    part = self.part_of[node.scope] if node.scope else self.top
                    part.held = (*part.held, _parameter_of(node, number))
        _count(list(walk(self.top)))

    def forget(self) -> None:
        """Let go of all parts, once no part is read any more."""
        # They refer to each other: garbage that only the collector finds.
        for part in list(walk(self.top)):
            part.children.clear()
            part.parent = None

    def _add_modules(self, graph: Graph) -> None:
        """Add every module at its place, called or not."""
        for module in graph.modules:
            name = module.name
            if not name:
                self._roots.append(module)
                if not module.class_name:
                    # A model that is no module is known by its parameters alone.
                    self._parts[(len(self._roots) - 1, name)] = self.top
                    self.top.held = module.parameters
                    continue
            root = len(self._roots) - 1
            above, _, attribute = name.rpartition(".")
            holder = self._parts.get((root, above)) if name else None
            self._parts[(root, name)] = Part(
                module.class_name.rpartition(".")[2],
                parent=holder or self.top,
                class_name=module.class_name,
                attribute=(attribute if holder else name) or None,
                name=name,
                held=module.parameters,
                borrowed=module.borrowed,
            )

    def _add_scopes(self, graph: Graph) -> None:
        """Find the part of each scope; a scope of no known module becomes a new part."""
        roots: dict[Scope, object] = {}
        if len(self._roots) > 1:
            # Of several models without a name, a call is of the one whose parameters it has.
            owners = {
                held.number: root
                for (root, _), part in reversed(self._parts.items())
                for held in part.held
            }
            for call in graph.calls:
                known = [owners[held.number] for held in call.parameters if held.number in owners]
                for scope in upward(call.scope) if known else ():
                    if scope.qualified_name == "":
                        roots[scope] = known[0]
        for scope in graph.scopes():
            above = self.part_of[scope.parent] if scope.parent else self.top
            if scope not in roots:
                roots[scope] = self._root(scope, roots[scope.parent] if scope.parent else None)
            name = scope.qualified_name
            place: _Place = (roots[scope], name)
            if name is None:
                place = (above, (scope.part.label, scope.part.attribute))
            part = self._parts.get(place)
            if part is None:
                part = Part(
                    scope.part.label, parent=above, attribute=scope.part.attribute, name=name
                )
                self._parts[place] = part
            elif not part.scopes:
                part.label = scope.part.label
                if part.parent is not None and part.parent is not above:
                    # In a block by hand, in which its holder calls it.
                    part.parent.children.remove(part)
                    part.parent = above
                    above.children.append(part)
            if part.kind == "unused" or scope.kind == "module":
                part.kind = scope.kind if scope.kind in ("module", "container") else "scope"
            part.scopes.append(scope)
            self.part_of[scope] = part

    def _root(self, scope: Scope, above: object) -> object:
        """Return the model that a scope belongs to, as the one around it; None if to none."""
        name, label = scope.qualified_name, scope.part.label
        if name == "":
            if len(self._roots) == 1:
                return 0
            classes = [module.class_name.rpartition(".")[2] for module in self._roots]
            return classes.index(label) if label in classes else label
        if above is None and name is not None:
            # A model that was given a name.
            return next((place[0] for place in self._parts if place[1] == name), 0)
        return above


def _parameter_of(node: Node, number: int) -> Parameter:
    """Return the parameter or buffer of a node; one of unknown sizes counts nothing."""
    value = node.outputs[0]
    known = value.shape is not None and None not in value.shape
    return Parameter(
        node.name.rpartition(".")[2],
        "buffer" if node.kind == "buffer" else "parameter",
        value.shape if known else None,
        value.dtype,
        value.size_bytes or 0,
        node.attributes.get("requires_grad") is True,
        number=number,
    )


def _count(parts: list[Part]) -> None:
    """Count each parameter once in every part around it.

    A module that no module registers counts in its own part and not above, as in a model.
    """
    holders: dict[int | str, dict[Part, Parameter]] = {}
    for part in parts:
        for parameter in (*part.held, *part.borrowed):
            holders.setdefault(parameter_key(part, parameter), {})[part] = parameter
    shared = []
    for held in holders.values():
        if len(held) > 1:
            shared.append(held)
        else:
            ((part, parameter),) = held.items()
            part.holds.add(parameter)
    for part in reversed(parts):
        above = _counted_above(part)
        if above is not None:
            above.holds.add_all(part.holds)
    for held in shared:
        _count_shared(held)


def _counted_above(part: Part) -> Part | None:
    """Return the part in which the parameters of a part count, too."""
    above = part.parent
    return None if above is None or (part.unregistered and not above.unregistered) else above


def _count_shared(held: dict[Part, Parameter]) -> None:
    """Count a parameter of several parts, once in all that are around one of them."""
    parameter = next(iter(held.values()))
    # A module that no module registers is not of the model.
    everyone = {part for part in held if part.name is not None} or {*held}
    inside: Counter[Part] = Counter()
    for part in held:
        above: Part | None = part
        while above is not None:
            inside[above] += part in everyone
            above = _counted_above(above)
    for part, count in inside.items():
        part.holds.add(parameter)
        if parameter.kind == "parameter" and count < len(everyone):
            part.holds.shared += numbers_in(parameter)
