"""The module tree of a graph: its modules in the author's nesting, each with all of its calls.

A part is a module, called or not, or a block named by the user. Info cards, overlays and the
summary are built from this tree; each parameter counts once in every enclosing part.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias

from tbscope.ir.graph import Call, Graph, Module, Node, Parameter
from tbscope.ir.nodes import STATE
from tbscope.ir.scopes import Scope, self_and_ancestors

PartKind: TypeAlias = Literal["graph", "module", "container", "scope", "unused"]
"""The kind of a part: the whole graph, a called module, a container (never called, but operations
ran in it), a block named by the user, or a module in which nothing ran."""

_Place: TypeAlias = tuple[object, object]


@dataclass(slots=True, eq=False)
class ParameterTotals:
    """Totals over parameters and buffers, each counted once.

    Attributes:
        parameters: Number of elements of the parameters.
        trainable: Number of elements of the parameters that require a gradient.
        shared: Number of elements of the parameters that a module outside of the part also has.
        parameter_bytes: Bytes of the parameters.
        buffers: Number of elements of the buffers.
        buffer_bytes: Bytes of the buffers.
        tensors: Number of parameters and buffers.
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
        """Bytes of parameters and buffers."""
        return self.parameter_bytes + self.buffer_bytes

    def add(self, parameter: Parameter) -> None:
        """Count a parameter or buffer; an uninitialized one has no elements."""
        count = numel_of(parameter)
        self.tensors += 1
        if parameter.kind == "buffer":
            self.buffers += count
            self.buffer_bytes += parameter.size_bytes
            return
        self.parameters += count
        self.parameter_bytes += parameter.size_bytes
        if parameter.requires_grad:
            self.trainable += count

    def add_all(self, other: "ParameterTotals") -> None:
        """Add the totals of a part below, except `shared`: both owners may be in this part."""
        self.parameters += other.parameters
        self.trainable += other.trainable
        self.parameter_bytes += other.parameter_bytes
        self.buffers += other.buffers
        self.buffer_bytes += other.buffer_bytes
        self.tensors += other.tensors


def numel_of(parameter: Parameter) -> int:
    """Return the number of elements of a parameter or buffer; 0 before it is initialized."""
    shape = parameter.shape
    if shape is None:
        return 0
    sizes: Any = shape
    # Unknown sizes are rare, and the filter takes three times as long.
    return math.prod([size for size in shape if size is not None] if None in shape else sizes)


@dataclass(slots=True, eq=False, repr=False)
class ModulePart:
    """A module with its calls, or a block named by the user.

    Attributes:
        kind: The kind of the part.
        label: The name of the class, or of the block.
        class_name: The full name of the class; empty for a part that is not a module.
        attribute: The attribute of the parent module; None for a root and for a block.
        name: The qualified name; None for a part that no module registers.
        parent: The enclosing part; None for the outermost.
        children: The parts in it, in the author's order.
        own_state: The module's own parameters and buffers, without those of its children.
        borrowed: Parameters and buffers of children that are registered under another module.
        scopes: The scopes of the calls.
        calls: The calls.
        holds: The totals over the parameters and buffers of the part and all parts below.
    """

    label: str
    _: KW_ONLY
    parent: "ModulePart | None" = None
    kind: PartKind = "unused"
    class_name: str = ""
    attribute: str | None = None
    name: str | None = None
    own_state: tuple[Parameter, ...] = ()
    borrowed: tuple[Parameter, ...] = ()
    children: "list[ModulePart]" = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    holds: ParameterTotals = field(default_factory=ParameterTotals)

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.parent.children.append(self)

    @property
    def title(self) -> str:
        """The attribute, or the class of a root, or the name of a block."""
        return self.label if self.attribute is None else self.attribute

    @property
    def unregistered(self) -> bool:
        """Whether it is a module that no module registers, and so is not part of the model."""
        return self.kind in ("module", "container") and self.name is None


def walk(root: ModulePart) -> list[ModulePart]:
    """Return a part and all parts below it, parents first, in the author's order."""
    parts: list[ModulePart] = []
    pending = [root]
    while pending:
        part = pending.pop()
        parts.append(part)
        pending.extend(reversed(part.children))
    return parts


def parameters_below(root: ModulePart) -> Iterator[Parameter]:
    """Yield the parameters below a module, each with its relative name (`qkv.weight`).

    Parameters of unregistered modules are left out.
    """
    yield from root.borrowed
    start = len(root.name) + 1 if root.name else 0
    for part in walk(root):
        if part is not root and not part.unregistered:
            for parameter in (*part.own_state, *part.borrowed):
                yield parameter._replace(name=f"{part.name}.{parameter.name}"[start:])


def parameter_key(part: ModulePart, parameter: Parameter) -> int | str:
    """Return the key of a parameter in the graph; tied parameters have equal keys."""
    if parameter.number >= 0:
        return parameter.number
    # Without numbers, only equal names identify a parameter, so ties are not recognised.
    return f"{part.label if part.name is None else part.name}.{parameter.name}"


def parameters_in(graph: Graph) -> dict[int | str, Parameter]:
    """Return the parameters of all modules of a graph by key, each once."""
    parameters: dict[int | str, Parameter] = {}
    for part in walk(ModuleTree(graph).top):
        for parameter in part.own_state:
            if parameter.kind == "parameter":
                parameters.setdefault(parameter_key(part, parameter), parameter)
    return parameters


def has_parameter_lists(graph: Graph) -> bool:
    """Whether a graph's modules list their parameters; those read from a drawing do not."""
    return bool(graph.modules) or any(call.parameters for call in graph.calls)


class ModuleTree:
    """The parts of a graph, and the part of each scope.

    Args:
        graph: The graph.
        count_nodes: Whether the nodes of parameters and buffers count in their enclosing parts, for
            a graph whose modules do not list them.

    Attributes:
        top: The outermost part.
        part_of: The part of each scope. Several calls of a module share a part.
    """

    def __init__(self, graph: Graph, *, count_nodes: bool = False) -> None:
        self.top = ModulePart(graph.name, kind="graph")
        self.part_of: dict[Scope, ModulePart] = {}
        self._parts: dict[_Place, ModulePart] = {}
        # The models, each with an empty name; its index distinguishes equal qualified names.
        self._roots: list[Module] = []
        self._add_modules(graph)
        self._add_scopes(graph)
        for call in graph.calls:
            part = self.part_of[call.scope]
            if not part.calls and not part.class_name:
                part.class_name = call.class_name
                part.own_state = call.parameters
            part.calls.append(call)
        if count_nodes:
            numbers: dict[object, int] = {}
            for node in graph.nodes:
                if node.kind in STATE:
                    # A drawing has a node for each name of a tied parameter.
                    name = node.attributes.get("tied_to", node.name)
                    number = numbers.setdefault(name, len(numbers))
                    part = self.part_of[node.scope] if node.scope else self.top
                    part.own_state = (*part.own_state, _parameter_of(node, number))
        _count(walk(self.top))

    def forget(self) -> None:
        """Release all parts, once no part is read any more."""
        # Parts refer to each other, so otherwise only the garbage collector would free them.
        for part in walk(self.top):
            part.children.clear()
            part.parent = None

    def _add_modules(self, graph: Graph) -> None:
        """Add every module at its place in the tree, called or not."""
        for module in graph.modules:
            name = module.name
            if not name:
                self._roots.append(module)
                if not module.class_name:
                    # A model that is not a module has no class: its parameters belong to the graph.
                    self._parts[(len(self._roots) - 1, name)] = self.top
                    self.top.own_state = module.parameters
                    continue
            root = len(self._roots) - 1
            parent_name, _, attribute = name.rpartition(".")
            parent_part = self._parts.get((root, parent_name)) if name else None
            self._parts[(root, name)] = ModulePart(
                module.class_name.rpartition(".")[2],
                parent=parent_part or self.top,
                class_name=module.class_name,
                attribute=(attribute if parent_part else name) or None,
                name=name,
                own_state=module.parameters,
                borrowed=module.borrowed,
            )

    def _add_scopes(self, graph: Graph) -> None:
        """Find the part of each scope; a scope without a listed module becomes a new part."""
        roots: dict[Scope, object] = {}
        if len(self._roots) > 1:
            # With several models in the graph, the parameters of a call identify its model. The
            # order is reversed, so that the first model with a shared parameter remains.
            owners = {
                parameter.number: root
                for (root, _), part in reversed(self._parts.items())
                for parameter in part.own_state
            }
            for call in graph.calls:
                models = [
                    owners[parameter.number]
                    for parameter in call.parameters
                    if parameter.number in owners
                ]
                for scope in self_and_ancestors(call.scope) if models else ():
                    if scope.qualified_name == "":
                        roots[scope] = models[0]
        for scope in graph.scopes():
            parent_part = self.part_of[scope.parent] if scope.parent else self.top
            name = scope.qualified_name
            if scope not in roots:
                above = roots[scope.parent] if scope.parent else None
                is_root = above is None or name == ""
                roots[scope] = self._root(name, scope.part.label) if is_root else above
            key: _Place = (roots[scope], name)
            if name is None:
                key = (parent_part, (scope.part.label, scope.part.attribute))
            part = self._parts.get(key)
            if part is None:
                part = ModulePart(
                    scope.part.label, parent=parent_part, attribute=scope.part.attribute, name=name
                )
                self._parts[key] = part
            elif not part.scopes:
                part.label = scope.part.label
                if part.parent is not None and part.parent is not parent_part:
                    # The parent module calls it in a block named by the user.
                    part.parent.children.remove(part)
                    part.parent = parent_part
                    parent_part.children.append(part)
            # A call decides the kind, even if another scope of the module is a container.
            if part.kind == "unused" or scope.kind == "module":
                part.kind = scope.kind if scope.kind in ("module", "container") else "scope"
            part.scopes.append(scope)
            self.part_of[scope] = part

    def _root(self, name: str | None, label: str) -> object:
        """Return the model of a scope whose parent has none; None for no model."""
        if name == "":
            if len(self._roots) == 1:
                return 0
            classes = [module.class_name.rpartition(".")[2] for module in self._roots]
            return classes.index(label) if label in classes else label
        if name is None:
            return None
        # A model with a name of its own.
        return next((key[0] for key in self._parts if key[1] == name), 0)


def _parameter_of(node: Node, number: int) -> Parameter:
    """Return the parameter or buffer of a node; one with unknown sizes counts no elements."""
    value = node.outputs[0]
    complete = value.shape is not None and None not in value.shape
    return Parameter(
        node.name.rpartition(".")[2],
        "buffer" if node.kind == "buffer" else "parameter",
        value.shape if complete else None,
        value.dtype,
        value.size_bytes or 0,
        node.attributes.get("requires_grad") is True,
        number=number,
    )


def _count(parts: list[ModulePart]) -> None:
    """Count each parameter once in every enclosing part.

    The parameters of an unregistered module do not count in registered parents, since
    `model.parameters()` does not include them.
    """
    parts_of: dict[int | str, dict[ModulePart, Parameter]] = {}
    for part in parts:
        for parameter in (*part.own_state, *part.borrowed):
            parts_of.setdefault(parameter_key(part, parameter), {})[part] = parameter
    shared = []
    for parameters in parts_of.values():
        if len(parameters) > 1:
            shared.append(parameters)
        else:
            ((part, parameter),) = parameters.items()
            part.holds.add(parameter)
    # The reversed order is children first, so that a part's totals are complete when they are added
    # to its parent's. Parameters of several parts follow, since they would count twice.
    for part in reversed(parts):
        # A part with a name is registered, so that its parameters count in its parent.
        parent = part.parent if part.name is not None else _counted_above(part)
        if parent is not None and part.holds.tensors:
            parent.holds.add_all(part.holds)
    for parameters in shared:
        _count_shared(parameters)


def _counted_above(part: ModulePart) -> ModulePart | None:
    """Return the next enclosing part in which the parameters of a part count, or None."""
    parent = part.parent
    return None if parent is None or (part.unregistered and not parent.unregistered) else parent


def _count_shared(parameters: dict[ModulePart, Parameter]) -> None:
    """Count a parameter of several parts once in each part that contains at least one of them."""
    parameter = next(iter(parameters.values()))
    # Unregistered modules are not part of the model, so they do not make a parameter shared.
    owners = {part for part in parameters if part.name is not None} or {*parameters}
    owners_inside: Counter[ModulePart] = Counter()
    for part in parameters:
        enclosing: ModulePart | None = part
        while enclosing is not None:
            owners_inside[enclosing] += part in owners
            enclosing = _counted_above(enclosing)
    for part, count in owners_inside.items():
        part.holds.add(parameter)
        if parameter.kind == "parameter" and count < len(owners):
            part.holds.shared += numel_of(parameter)
