"""Module calls of an ONNX model, found node by node, and the scopes of its graph.

The file has the module of each node, but not the call of the module. Nodes are in the order in
which they ran: a node that returns to a module after nodes elsewhere continues the latest call of
it, or begins another call if the latest call has already run the operation of the node, or if the
node depends on the latest call through nodes outside of it. Scopes of modules, bodies and functions
are opened in node order.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.scopes import Scope, ScopeKind, self_and_ancestors
from tbscope.sources.onnx.origins import ModuleRef, Origin
from tbscope.sources.torch.recorded_names import container_class

if TYPE_CHECKING:
    from tbscope.ir.graph import Call


class ModuleCall:
    """One call of a module; compared by identity.

    Attributes:
        parent: The enclosing call; None for the outermost.
        level: The module.
        number: The number of the call among all calls of the module, from 0.
        done: The operations that ran in it: each the names of the modules inside, and a target.
    """

    __slots__ = ("done", "level", "number", "parent")

    def __init__(self, level: ModuleRef, parent: "ModuleCall | None", number: int) -> None:
        self.level = level
        self.parent = parent
        self.number = number
        self.done: set[tuple[str, ...]] = set()

    def path(self) -> list["ModuleCall"]:
        """Return the calls down to this one, outermost first."""
        return [*(self.parent.path() if self.parent else []), self]


Box: TypeAlias = ModuleCall | int
"""A call, or the number of a node."""


class CallFinder:
    """The calls of one model, found node by node.

    Args:
        numbers: The call numbers of the enclosing modules, outermost first, by the name of an
            operation (`linear_1`); other operations are placed by their order.
    """

    def __init__(
        self,
        numbers: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self._numbers = numbers or {}
        # The calls around the previous node, and around the previous node of any module.
        self._previous: list[ModuleCall] = []
        self._before: list[ModuleCall] = []
        self._last: dict[tuple[ModuleCall | None, ModuleRef], ModuleCall] = {}
        self._known: dict[tuple[ModuleCall | None, ModuleRef, int], ModuleCall] = {}
        self._count: Counter[ModuleRef] = Counter()
        # The calls that were left and entered again.
        self._returned: set[Box] = set()
        self._nodes = 0
        # The calls around the node of each value, and the node.
        self._boxes: dict[str, list[Box]] = {}
        # The boxes that a box reads, of those in the same call.
        self._reads: dict[Box, set[Box]] = defaultdict(set)

    def of(
        self, origin: Origin, reads: Iterable[str] = (), results: Sequence[str] = ()
    ) -> ModuleCall | None:
        """Return the innermost call of the next node, or None for a node outside of all modules.

        Args:
            origin: The origin of the node.
            reads: The names of the values that it reads, by which another call begins where a node
                depends on the latest call through nodes outside of it.
            results: The names of the values that it computes.
        """
        names = [level.name for level in origin.levels]
        modules = [level for level in origin.levels if not level.by_hand]
        numbers = self._numbers.get(origin.name, ())
        exact = {}
        if len(numbers) >= len(modules):
            # A body has only the innermost modules of its nodes.
            exact = dict(zip(reversed(modules), reversed(numbers), strict=False))
        sources = [self._boxes[name] for name in reads if name in self._boxes]
        path: list[ModuleCall] = []
        for depth, level in enumerate(origin.levels):
            parent, operation = path[-1] if path else None, (*names[depth + 1 :], origin.target)
            if exact:
                number = exact.get(level, 0)
                call = self._known.get((parent, level, number))
            else:
                number, call = self._count[level], self._last.get((parent, level))
                # A call that was not left runs an operation of one name again.
                again = call not in self._before and not level.by_hand
                if again and call is not None and operation in call.done:
                    call = None
            if call is not None and call not in self._previous:
                self._returned.add(call)
            inner = {source[depth] for source in sources if source[:depth] == path}
            if call is None or self._returns(call, inner - {call}):
                call = ModuleCall(level, parent, number)
                self._count[level] += 1
                self._known[parent, level, number] = call
            self._last[parent, level] = call
            call.done.add(operation)
            path.append(call)
        self._previous, self._before = path, path or self._before
        self._nodes += 1
        boxes: list[Box] = [*path, self._nodes]
        self._boxes.update(dict.fromkeys(results, boxes))
        for source in sources:
            pairs = zip(boxes, source, strict=False)
            box, other = next(pair for pair in pairs if pair[0] != pair[1])
            self._reads[box].add(other)
        return path[-1] if path else None

    def _returns(self, call: ModuleCall, seen: set[Box]) -> bool:
        """Whether one of these boxes outside of a call depends on the call."""
        pending = [*seen] if call in self._returned else []
        while pending and call not in seen:
            further = self._reads[pending.pop()] - seen
            seen |= further
            pending += further
        return call in seen


def label_of(class_name: str) -> str:
    """Return the name of a class without its Python module, or of a function without its domain.

    >>> label_of("torch.nn.modules.linear.Linear"), label_of("domain::Layer")
    ('Linear', 'Layer')
    """
    return class_name.rpartition("::")[2].rpartition(".")[2] or class_name


class ModuleScopes:
    """The scopes of one graph, by the module calls of an ONNX model.

    Args:
        build: The builder of the graph.
    """

    def __init__(self, build: GraphBuilder) -> None:
        self._build = build
        # The full class name of each module in the file, by its qualified name; None if the file
        # has no class.
        self._classes: dict[str, str | None] = {}
        self._of: dict[tuple[Scope | None, ModuleCall], Scope] = {}
        # The latest scope of each module, called or not, by enclosing scope and attribute.
        self._latest: dict[tuple[Scope | None, str], Scope] = {}
        self._named: dict[str, Scope] = {}
        self.calls: dict[Scope, Call] = {}
        # The scope of the call that called a module: the module may be a part of another one.
        self.runs_in: dict[Scope, Scope | None] = {}

    def of(self, module_call: ModuleCall | None, around: Scope | None) -> Scope | None:
        """Return the scope of a module call, and open it and its parents if they are new.

        Args:
            module_call: The call; None for no call.
            around: The scope that encloses the outermost call.
        """
        scope = around
        for call in module_call.path() if module_call else []:
            opened = self._of.get((around, call))
            if opened is None:
                opened = self._of[around, call] = self.open(call.level, scope)
                self.runs_in[opened] = scope
            scope = opened
        return scope

    def learn(self, levels: Iterable[ModuleRef]) -> None:
        """Record modules before any is opened: a container's class follows from its members."""
        for level in levels:
            if not level.by_hand:
                self._classes[level.name] = level.class_name or self._classes.get(level.name)

    def owner(self, name: str, reader: Scope | None) -> Scope | None:
        """Return the scope of the module that owns a parameter, or the reader's scope if none does.

        Of several calls of the module, the call that encloses the reader counts, else the first.
        """
        owner = name.rpartition(".")[0]
        for scope in self_and_ancestors(reader):
            if scope.qualified_name == owner:
                return scope
        if owner in self._named:
            return self._named[owner]
        return reader

    def block(self, label: str, around: Scope | None) -> Scope:
        """Open a scope for the body of an operation."""
        return self._build.new_scope(label, parent=around, kind="function")

    def open(self, level: ModuleRef, around: Scope | None) -> Scope:
        """Open the scope of one call of a module or a function."""
        if level.by_hand:
            return self._new(level.name, None, around, "hand", None)
        parent_name = _name_around(around)
        relative_name = level.name
        if parent_name and relative_name.startswith(f"{parent_name}."):
            relative_name = relative_name[len(parent_name) + 1 :]
        *holders, attribute = relative_name.split(".")
        scope = around
        for name in holders:
            scope = self._holder(name, scope)
        if level.class_name is None:
            # A name without a class may be no module: its scope is like one named by hand.
            return self._new(attribute or self._build.graph.name, None, scope, "hand", level.name)
        # A module without a name in another scope is registered by no module.
        registered = None if around is not None and not level.name else level.name
        latest = self._latest.get((scope, attribute))
        if registered and latest is not None and latest.kind == "container":
            # The scope was opened as a container of called modules, and its module is called now.
            latest.kind = "module"
            opened = latest
        else:
            label = label_of(level.class_name)
            opened = self._new(label, attribute or None, scope, "module", registered)
        if registered:
            self._latest[scope, attribute] = opened
        self.calls[opened] = self._build.add_call(opened, class_name=level.class_name)
        return opened

    def _holder(self, name: str, around: Scope | None) -> Scope:
        """Return the scope of a parent module that is not called itself."""
        container = self._latest.get((around, name))
        if container is None:
            qualified = ".".join(filter(None, [_name_around(around), name]))
            class_name = self._classes.get(qualified) or container_class(self._classes, qualified)
            container = self._new(label_of(class_name), name, around, "container", qualified)
            self._latest[around, name] = container
        return container

    def _new(
        self,
        label: str,
        attribute: str | None,
        around: Scope | None,
        kind: ScopeKind,
        name: str | None,
    ) -> Scope:
        scope = self._build.new_scope(
            label, attribute, parent=around, kind=kind, qualified_name=name
        )
        if name is not None:
            self._named.setdefault(name, scope)
        return scope


def _name_around(scope: Scope | None) -> str | None:
    """Return the qualified name of the innermost enclosing module, or None; bodies have no name."""
    names = (enclosing.qualified_name for enclosing in self_and_ancestors(scope))
    return next((name for name in names if name is not None), None)
