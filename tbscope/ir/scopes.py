"""Scopes: the nodes of the module tree in which operations run.

A scope is one call of a module, a container that is never called itself
(ModuleList), a block named by the user, an operation whose kernels are drawn, a
function, or a process of a distributed run. Its printed path reads
`Net/Sequential[layer1]/Linear[0]`: the class, and in brackets the attribute of
the parent module; a later call of a module ends in its number, `Linear[0].1`.
This file does not import torch.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSet, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from tbscope.errors import ArgumentError
from tbscope.messages import shown

__all__ = [
    "PHASE_BOXES",
    "RECOMPUTED",
    "InheritedProperty",
    "MovedScopes",
    "NearestProperty",
    "Phase",
    "Scope",
    "ScopeKind",
    "ScopePart",
    "add_with_ancestors",
    "children_first",
    "self_and_ancestors",
    "with_above",
]

ScopeKind = Literal["module", "container", "hand", "op", "function", "rank"]

Phase = Literal["forward", "backward", "optimizer"]
"""The phase of a training step."""

PHASE_BOXES: dict[Phase, str] = {"backward": "gradients", "optimizer": "optimizer"}
"""The names of the boxes for backward passes and for optimizer steps."""

RECOMPUTED = "recomputed"
"""The name of the box for the second forward pass of a checkpoint, in a backward pass."""

# The characters that structure a printed path, and so are escaped in labels and attributes;
# and unprintable characters.
_RESERVED = re.compile(r"[%/\[\].\\\x00-\x1f\x7f\ud800-\udfff]")
# Inside of the brackets a dot does not begin a number, so it stays as it is.
_RESERVED_IN_ATTRIBUTE = re.compile(r"[%/\[\]\\\x00-\x1f\x7f\ud800-\udfff]")
# An empty label prints as a `%` that escapes nothing, so that no step of a path is empty.
_EMPTY = "%"
# GraphDef paths contain Python's escapes for non-ASCII characters, since the page shows ASCII only.
_ESCAPE = re.compile(
    r"%([0-9A-F]{2})|\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U(00(?:0[0-9a-f]|10)[0-9a-f]{4}))"
)
# Python converts no number of more than 4,300 digits.
_PART = re.compile(r"([^\[\].]*)(?:\[([^\[\]]*)\])?(?:\.([0-9]{1,4000}))?")


@dataclass(frozen=True, slots=True)
class ScopePart:
    """One step of a scope path.

    Attributes:
        label: The class of the module (`Linear`), or the name of any other scope (`loss`).
        attribute: The attribute name of the module in its parent (`0`); None for a root and for
            a scope that is not a module.
        index: The number of scopes with this parent, label and attribute that were opened before.
    """

    label: str
    attribute: str | None = None
    index: int = 0

    def __str__(self) -> str:
        """Print as `Label`, `Label[attribute]` or `Label[attribute].index`."""
        text = _RESERVED.sub(_escaped, self.label) or _EMPTY
        if self.attribute is not None:
            text += f"[{_RESERVED_IN_ATTRIBUTE.sub(_escaped, self.attribute)}]"
        return f"{text}.{self.index}" if self.index else text


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"%{code:02X}" if code < 0x80 else f"\\u{code:04x}"


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[match.lastindex or 0], 16)), text)


def _refused(text: object, why: str) -> ArgumentError:
    return ArgumentError(
        f"cannot read the scope path {shown(text)}",
        why=why,
        fix="give a path as node.scope prints it, e.g. 'Net/Sequential[layer1]/Linear[0]'",
    )


class Scope:
    """One place where operations run; compared by identity.

    >>> import torch, tbscope
    >>> graph = tbscope.trace(torch.nn.Sequential(torch.nn.Linear(3, 5)), torch.rand(1, 3))
    >>> scope = graph.nodes[-1].scope
    >>> str(scope), scope.qualified_name, scope.part.label
    ('Sequential/Linear[0]', '0', 'Linear')

    Attributes:
        parent: The enclosing scope; None at the top level.
        part: The last step of the path.
        kind: "module" for a call of a module, "container" for a module that contains
            others and is not called itself, "hand" for a block named by the user, "op" for an
            operation whose kernels are drawn, "function" for a call of a function, "rank"
            for a process of a distributed run.
        qualified_name: The name in `named_modules()` (`layer1.0`; empty for a root);
            None for a scope that is not a module and for an unregistered module.
        phase: The phase of a training step in which the scope was opened. Nodes in it may
            belong to another phase: the backward pass of a module is in the module's scope.
    """

    __slots__ = ("_path", "kind", "parent", "part", "phase", "qualified_name")

    def __init__(
        self,
        part: ScopePart,
        *,
        parent: "Scope | None" = None,
        kind: ScopeKind = "module",
        qualified_name: str | None = None,
        phase: Phase = "forward",
    ) -> None:
        self.part = part
        self.parent = parent
        self.kind: ScopeKind = kind
        self.qualified_name = qualified_name
        self.phase: Phase = phase
        self._path: str | None = None

    @property
    def path(self) -> str:
        """The printed path from the top, `Net/Sequential[layer1]/Linear[0]`."""
        # Paths are set from the outermost scope inwards, without recursion and once per scope.
        if self._path is None:
            pending = [self]
            while (parent := pending[-1].parent) is not None and parent._path is None:
                pending.append(parent)
            for scope in reversed(pending):
                parent = scope.parent
                scope._path = f"{parent._path}/{scope.part}" if parent else str(scope.part)
            assert self._path is not None
        return self._path

    @staticmethod
    def parse(text: str) -> tuple[ScopePart, ...]:
        """Return the steps of a printed path: `Scope.parse(scope.path) == scope.parts`.

        >>> [part.attribute for part in Scope.parse("Net/Sequential[layer1]/Linear[0].1")]
        [None, 'layer1', '0']

        Args:
            text: A path as printed by `scope.path`, or the ASCII form in the attribute `scope` of a
                GraphDef node; empty for the top level.
        Returns:
            One part per step, outermost first.
        Raises:
            ArgumentError: A step does not have the form `Label[attribute].index`.
        """
        if not isinstance(text, str):
            raise _refused(text, "a path is a text")
        text = str.__str__(text)
        if not text:
            return ()
        parts = []
        for step in text.split("/"):
            match = _PART.fullmatch(step)
            if not match:
                raise _refused(
                    text, f"its step {shown(step)} has not the form Label[attribute].index"
                )
            label, attribute, index = match.groups()
            parts.append(
                ScopePart(
                    "" if label in ("", _EMPTY) else _unescape(label),
                    None if attribute is None else _unescape(attribute),
                    int(index or 0),
                )
            )
        return tuple(parts)

    def renumber(self, index: int) -> None:
        """Change the number. The caller also renumbers all scopes below, whose paths include it."""
        self.part = replace(self.part, index=index)
        self._path = None

    @property
    def parts(self) -> tuple[ScopePart, ...]:
        """The steps of the path, outermost first."""
        return tuple([scope.part for scope in reversed(self_and_ancestors(self))])

    def like(self, part: ScopePart, parent: "Scope | None") -> "Scope":
        """Return a scope with another part and another parent."""
        return Scope(
            part,
            parent=parent,
            kind=self.kind,
            qualified_name=self.qualified_name,
            phase=self.phase,
        )

    def ancestors(self) -> Iterator["Scope"]:
        """Return the enclosing scopes, innermost first."""
        return iter(self_and_ancestors(self.parent))

    def __str__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"Scope({self.path!r})"


# -- ancestors ------------------------------------------------------------------------------


_Found = TypeVar("_Found")


class InheritedProperty(Generic[_Found]):
    """A cached property of scopes, computed from the scope and its parent's property.

    Each scope is computed once, so the cost for a graph is its number of scopes, independent of
    the depth of nesting.

    Args:
        tell: Computes the property of a scope from the scope and its parent's property.
        top: The property of the top level, outside of all scopes.
    """

    def __init__(self, tell: Callable[[Scope, _Found], _Found], *, top: _Found) -> None:
        self._tell = tell
        self._known: dict[Scope | None, _Found] = {None: top}

    def __call__(self, scope: Scope | None) -> _Found:
        """Return the property of a scope, or of the top level for None."""
        values = self._known
        if scope in values:
            return values[scope]
        pending: list[Scope] = []
        while scope is not None and scope not in values:
            pending.append(scope)
            scope = scope.parent
        value = values[scope]
        for inner in reversed(pending):
            values[inner] = value = self._tell(inner, value)
        return value


class NearestProperty(InheritedProperty[_Found | None]):
    """The property of the innermost scope that has one, among a scope and its ancestors.

    Args:
        tell: Returns the property of a scope, or None if the parent's counts.
        top: The property if none of the scopes has one.
    """

    def __init__(
        self, tell: Callable[[Scope], _Found | None], *, top: _Found | None = None
    ) -> None:
        def own_or_inherited(scope: Scope, above: _Found | None) -> _Found | None:
            own = tell(scope)
            return above if own is None else own

        super().__init__(own_or_inherited, top=top)


class MovedScopes:
    """New scopes for those of a graph: some are replaced by others, some get another part.

    Scopes that get equal paths become one.

    Args:
        instead: The scope that replaces a scope; its ancestors replace those of that scope.
        parts: The new part of a scope.
    """

    def __init__(
        self, instead: Mapping[Scope, Scope], parts: Mapping[Scope, ScopePart] | None = None
    ) -> None:
        self._instead = instead
        self._parts = parts or {}
        self._made: dict[tuple[Scope | None, ScopePart], Scope] = {}
        self.new_scope = InheritedProperty[Scope | None](self._moved, top=None)

    def _moved(self, scope: Scope, parent: Scope | None) -> Scope:
        source = self._instead.get(scope, scope)
        key = parent, self._parts.get(source, source.part)
        if key not in self._made:
            self._made[key] = source.like(key[1], parent)
        return self._made[key]

    def apply(self, nodes: Iterable[Any], calls: Iterable[Any]) -> None:
        """Move nodes and calls to the new scopes."""
        for node in nodes:
            node.scope = self.new_scope(node.scope)
        for call in calls:
            call.scope, call.caller = self.new_scope(call.scope), self.new_scope(call.caller)


def self_and_ancestors(scope: Scope | None) -> list[Scope]:
    """Return a scope and its ancestors, the innermost first; nothing for None."""
    scopes: list[Scope] = []
    while scope is not None:
        scopes.append(scope)
        scope = scope.parent
    return scopes


def add_with_ancestors(scope: Scope | None, scopes: MutableSet[Scope]) -> Sequence[Scope]:
    """Add a scope and its ancestors to a set that contains all ancestors of its members.

    Returns:
        The scopes that were not in the set, the innermost first.
    """
    # This runs for each node of a graph, and nearly always the scope is in the set already.
    if scope is None or scope in scopes:
        return ()
    added: list[Scope] = []
    while scope is not None and scope not in scopes:
        scopes.add(scope)
        added.append(scope)
        scope = scope.parent
    return added


def with_above(scopes: Iterable[Scope | None]) -> set[Scope]:
    """Return some scopes and all of their ancestors."""
    with_ancestors: set[Scope] = set()
    for scope in scopes:
        ancestor = scope
        while ancestor is not None and ancestor not in with_ancestors:
            with_ancestors.add(ancestor)
            ancestor = ancestor.parent
    return with_ancestors


def children_first(scopes: Iterable[Scope]) -> list[tuple[Scope, Scope]]:
    """Return each scope that has a parent with this parent, the innermost first.

    Args:
        scopes: Parents first, in the order of `Graph.scopes`.
    """
    return [(scope, scope.parent) for scope in reversed([*scopes]) if scope.parent is not None]
