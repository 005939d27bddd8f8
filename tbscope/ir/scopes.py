"""Scopes: the places in the module tree where operations run.

A scope is one call of a module, a container that is never called itself
(ModuleList), a block named by hand, an operation whose kernels are drawn, a
function, or a process of a distributed run. Its printed path reads
`Net/Sequential[layer1]/Linear[0]`: class, and in brackets the attribute that
holds the module in its parent; a later call of the same module ends in its
number, `Linear[0].1`. This file knows nothing of torch.
"""

import re
from collections.abc import Callable, Iterable, Iterator, MutableSet, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from tbscope.errors import ArgumentError
from tbscope.messages import shown

__all__ = [
    "PHASE_BOXES",
    "Inherited",
    "Nearest",
    "Phase",
    "Scope",
    "ScopeKind",
    "ScopePart",
    "add_with_above",
    "inside_out",
    "parse_scope_path",
    "upward",
    "with_above",
]

ScopeKind = Literal["module", "container", "hand", "op", "function", "rank"]

Phase = Literal["forward", "backward", "optimizer"]
"""The part of a training step in which something runs."""

PHASE_BOXES: dict[Phase, str] = {"backward": "gradients", "optimizer": "optimizer"}
"""What the box of a backward pass is called, and that of an optimizer's step."""

# The characters that structure a printed path, and so are escaped inside its words; and those
# that nothing can print.
_RESERVED = re.compile(r"[%/\[\].\\\x00-\x1f\x7f\ud800-\udfff]")
_RESERVED_IN_ATTRIBUTE = re.compile(r"[%/\[\]\\\x00-\x1f\x7f\ud800-\udfff]")
# An empty label prints as a `%` that escapes nothing, so that no step of a path is empty.
_EMPTY = "%"
# What is no ASCII a GraphDef tells as Python escapes it, since the page shows no more.
_ESCAPE = re.compile(
    r"%([0-9A-F]{2})|\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U(00(?:0[0-9a-f]|10)[0-9a-f]{4}))"
)
# Python reads no number of more than 4,300 digits.
_PART = re.compile(r"([^\[\].]*)(?:\[([^\[\]]*)\])?(?:\.([0-9]{1,4000}))?")


@dataclass(frozen=True, slots=True)
class ScopePart:
    """One step of a scope path.

    Attributes:
        label: The class of the module (`Linear`), or the name of what is no module (`loss`).
        attribute: The name under which the parent holds the module (`0`); None for
            a root and for what is no module.
        index: How many scopes of the same place were opened before this one.
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


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"%{code:02X}" if code < 0x80 else f"\\u{code:04x}"


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[found.lastindex or 0], 16)), text)


def parse_scope_path(text: str) -> tuple[ScopePart, ...]:
    """Read a printed scope path back into its parts.

    Args:
        text: A path as `scope.path` prints it, or as the attribute `scope` of a node in
            a GraphDef tells it, in ASCII; empty for the top level.
    Returns:
        One part per step, outermost first.
    Raises:
        ArgumentError: A step has not the form `Label[attribute].index`.
    """
    if not isinstance(text, str):
        raise _refused(text, "a path is a text")
    text = str.__str__(text)
    if not text:
        return ()
    parts = []
    for step in text.split("/"):
        found = _PART.fullmatch(step)
        if not found:
            raise _refused(text, f"its step {shown(step)} has not the form Label[attribute].index")
        label, attribute, index = found.groups()
        parts.append(
            ScopePart(
                "" if label in ("", _EMPTY) else _unescape(label),
                None if attribute is None else _unescape(attribute),
                int(index or 0),
            )
        )
    return tuple(parts)


def _refused(text: object, why: str) -> ArgumentError:
    return ArgumentError(
        f"cannot read the scope path {shown(text)}",
        why=why,
        fix="give a path as node.scope prints it, e.g. 'Net/Sequential[layer1]/Linear[0]'",
    )


class Scope:
    """One place where operations run; compared by identity.

    Attributes:
        parent: The scope around this one; None at the top level.
        part: The last step of the path.
        kind: "module" for a call of a module, "container" for a module that holds
            others and is not called itself, "hand" for a block named by hand, "op" for an
            operation whose kernels are drawn, "function" for a call of a function, "rank"
            for a process of a distributed run.
        qualified_name: The name in `named_modules()` (`layer1.0`; empty for a root);
            None for what is no module and for a module that no module registers.
        phase: The part of a training step in which it was opened. What runs in it may
            belong to another: the backward pass of a module stands in the module's scope.
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
        # Filled outermost first, so that depth costs neither recursion nor time twice.
        if self._path is None:
            pending = [self]
            while (above := pending[-1].parent) is not None and above._path is None:
                pending.append(above)
            for scope in reversed(pending):
                above = scope.parent
                scope._path = f"{above._path}/{scope.part}" if above else str(scope.part)
            assert self._path is not None
        return self._path

    def renumber(self, index: int) -> None:
        """Give it another number. Whoever does it renumbers all below, whose paths tell of it."""
        self.part = replace(self.part, index=index)
        self._path = None

    @property
    def parts(self) -> tuple[ScopePart, ...]:
        """The steps of the path, outermost first."""
        return (*(scope.part for scope in reversed(list(self.ancestors()))), self.part)

    def ancestors(self) -> Iterator["Scope"]:
        """Return the scopes around this one, innermost first."""
        return upward(self.parent)

    def __str__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"Scope({self.path!r})"


# -- climbs ---------------------------------------------------------------------------------


_Found = TypeVar("_Found")


class Inherited(Generic[_Found]):
    """What each scope has, told by the scope itself and by what the one around it has.

    Each scope is asked once, so a graph costs as many questions as it has scopes, however
    deep they stand in each other.

    Args:
        tell: What a scope has, from the scope and what the one around it has.
        top: What the top level has, where no scope is.
    """

    def __init__(self, tell: Callable[[Scope, _Found], _Found], *, top: _Found) -> None:
        self._tell = tell
        self._known: dict[Scope | None, _Found] = {None: top}

    def __call__(self, scope: Scope | None) -> _Found:
        """Return what a scope has; what the top level has for None."""
        known = self._known
        if scope in known:
            return known[scope]
        pending: list[Scope] = []
        while scope is not None and scope not in known:
            pending.append(scope)
            scope = scope.parent
        found = known[scope]
        for below in reversed(pending):
            known[below] = found = self._tell(below, found)
        return found


class Nearest(Inherited[_Found | None]):
    """What the innermost scope tells, of one and those around it, that tells something.

    Args:
        tell: What a scope tells; None where it tells nothing, and the scope around it counts.
        top: What is told where no scope tells anything.
    """

    def __init__(
        self, tell: Callable[[Scope], _Found | None], *, top: _Found | None = None
    ) -> None:
        def told(scope: Scope, above: _Found | None) -> _Found | None:
            own = tell(scope)
            return above if own is None else own

        super().__init__(told, top=top)


def upward(scope: Scope | None) -> Iterator[Scope]:
    """Return a scope and all around it, the innermost first; nothing for None."""
    while scope is not None:
        yield scope
        scope = scope.parent


def add_with_above(scope: Scope | None, found: MutableSet[Scope]) -> Sequence[Scope]:
    """Add a scope and all around it to a set that already holds, with any, all around it.

    Returns:
        The scopes that were not there, the innermost first.
    """
    # Asked for each node of a graph: nearly always its scope is there.
    if scope is None or scope in found:
        return ()
    added: list[Scope] = []
    while scope is not None and scope not in found:
        found.add(scope)
        added.append(scope)
        scope = scope.parent
    return added


def with_above(scopes: Iterable[Scope | None]) -> set[Scope]:
    """Return some scopes and all that are around one of them."""
    found: set[Scope] = set()
    for scope in scopes:
        around = scope
        while around is not None and around not in found:
            found.add(around)
            around = around.parent
    return found


def inside_out(scopes: Iterable[Scope]) -> Iterator[tuple[Scope, Scope]]:
    """Return each scope that stands in another one, with that one, the innermost first.

    Args:
        scopes: Parents first, as `Graph.scopes` has them.
    """
    for scope in reversed(list(scopes)):
        if scope.parent is not None:
            yield scope, scope.parent
