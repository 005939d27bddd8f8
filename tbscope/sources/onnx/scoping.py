"""Opens the scopes of a graph as the nodes of an ONNX model come: modules, blocks, functions."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.scopes import Scope, ScopeKind, upward
from tbscope.sources.onnx.call_instances import Place
from tbscope.sources.onnx.metadata import Level
from tbscope.sources.torch.containers import container_class

if TYPE_CHECKING:
    from tbscope.ir.graph import Call

__all__ = ["Scopes", "label_of"]


def label_of(class_name: str) -> str:
    """Return the name of a class without its module; functions keep theirs.

    >>> label_of("torch.nn.modules.linear.Linear"), label_of("domain::Layer")
    ('Linear', 'Layer')
    """
    return class_name.rpartition("::")[2].rpartition(".")[2] or class_name


class Scopes:
    """The scopes of one graph, by the places that an ONNX model tells.

    Args:
        build: Where they are opened.
    """

    def __init__(self, build: GraphBuilder) -> None:
        self._build = build
        # The full name of the class of each module of which something is told, by its qualified
        # name; None where the file does not tell the class.
        self._classes: dict[str, str | None] = {}
        self._of: dict[tuple[Scope | None, Place], Scope] = {}
        # The latest scope of each module, called or not, in the scope around it.
        self._latest: dict[tuple[Scope | None, str], Scope] = {}
        self._named: dict[str, Scope] = {}
        self.calls: dict[Scope, Call] = {}

    def of(self, place: Place | None, around: Scope | None) -> Scope | None:
        """Return the scope of a place.

        Args:
            place: The place; None for none.
            around: The scope in which the outermost place stands.
        """
        scope = around
        for each in place.path() if place else []:
            known = self._of.get((around, each))
            if known is None:
                known = self._of[around, each] = self._open(each.level, scope)
            scope = known
        return scope

    def learn(self, levels: Iterable[Level]) -> None:
        """Take note of modules, before one is opened: what a holder is, its members tell."""
        for level in levels:
            self._classes[level.name] = level.class_name or self._classes.get(level.name)

    def owner(self, name: str, reader: Scope | None) -> Scope | None:
        """Return the scope of the module that owns a parameter; that of its reader if none does.

        Of a module that is called several times, it is the call around the reader, else the first.
        """
        owner = name.rpartition(".")[0]
        for scope in upward(reader):
            if scope.qualified_name == owner:
                return scope
        if owner in self._named:
            return self._named[owner]
        return reader

    def call(self, level: Level, around: Scope | None) -> Scope:
        """Open the scope of one call of a module or a function."""
        return self._open(level, around)

    def block(self, label: str, around: Scope | None) -> Scope:
        """Open a scope for the body of an operation."""
        return self._build.new_scope(label, parent=around, kind="function")

    def _open(self, level: Level, around: Scope | None) -> Scope:
        outer = _name_around(around)
        own = level.name
        if outer and own.startswith(f"{outer}."):
            own = own[len(outer) + 1 :]
        *holders, attribute = own.split(".")
        scope = around
        for name in holders:
            scope = self._holder(name, scope)
        if level.class_name is None:
            # Of what is known by its name alone, nobody tells that it is a module.
            return self._new(attribute or self._build.graph.name, None, scope, "hand", level.name)
        # What has no name and stands in another one is no module that somebody registers.
        registered = None if around is not None and not level.name else level.name
        known = self._latest.get((scope, attribute))
        if registered and known is not None and known.kind == "container":
            # It stood for what was called in it, and is called itself now: the same scope.
            known.kind = "module"
            made = known
        else:
            label = label_of(level.class_name)
            made = self._new(label, attribute or None, scope, "module", registered)
        if registered:
            self._latest[scope, attribute] = made
        self.calls[made] = self._build.add_call(made, class_name=level.class_name)
        return made

    def _holder(self, name: str, around: Scope | None) -> Scope:
        """Return the scope of a module that holds others, and is not called here itself."""
        known = self._latest.get((around, name))
        if known is None:
            qualified = ".".join(filter(None, [_name_around(around), name]))
            told = self._classes.get(qualified) or container_class(self._classes, qualified)
            known = self._new(label_of(told), name, around, "container", qualified)
            self._latest[around, name] = known
        return known

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
    """Return the qualified name of the innermost module around; bodies and functions have none."""
    names = (each.qualified_name for each in upward(scope))
    return next((name for name in names if name is not None), None)
