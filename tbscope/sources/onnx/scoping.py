"""Scopes of the graph of an ONNX model, opened in node order: modules, bodies, functions."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.scopes import Scope, ScopeKind, self_and_ancestors
from tbscope.sources.onnx.call_instances import ModuleCall
from tbscope.sources.onnx.metadata import ModuleRef
from tbscope.sources.torch.module_names import container_class

if TYPE_CHECKING:
    from tbscope.ir.graph import Call

__all__ = ["ModuleScopes", "label_of"]


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
                opened = self._of[around, call] = self._open(call.level, scope)
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

    def call(self, level: ModuleRef, around: Scope | None) -> Scope:
        """Open the scope of one call of a module or a function."""
        return self._open(level, around)

    def block(self, label: str, around: Scope | None) -> Scope:
        """Open a scope for the body of an operation."""
        return self._build.new_scope(label, parent=around, kind="function")

    def _open(self, level: ModuleRef, around: Scope | None) -> Scope:
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
