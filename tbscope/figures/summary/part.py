"""A part of a model: a module with all of its calls, called or not, or a block named by hand."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias

from tbscope.figures.costs import Costs
from tbscope.figures.summary.holdings import Holdings
from tbscope.ir.graph import Call, Parameter

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope

__all__ = ["Part", "PartKind", "held_below", "walk"]

PartKind: TypeAlias = Literal["graph", "module", "container", "scope", "unused"]
"""What a part is: the whole graph, a module that was called, one that was not though something
in it ran or may have run, a block by hand, or a module in which nothing ran."""


class Part:
    """A module with its calls, or a block by hand.

    Attributes:
        kind: What it is.
        label: The name of its class, or of the block.
        class_name: The full name of its class; empty for what is no module.
        attribute: The name under which its holder has it; None for a root and for a block.
        index: Which of the calls of a module it is, where each is a part of its own.
        name: Its qualified name; None for what no module registers.
        parent: The part around it; None for the outermost.
        children: The parts in it, as the author wrote them.
        held: Its own parameters and buffers, those of its children not among them.
        borrowed: Parameters and buffers of children that are parts of another module.
        scopes: The scopes of its calls.
        calls: Its calls.
        holds: What is held in it and below it.
    """

    __slots__ = (
        "_costs",
        "attribute",
        "borrowed",
        "calls",
        "children",
        "class_name",
        "held",
        "holds",
        "index",
        "kind",
        "label",
        "name",
        "parent",
        "scopes",
    )

    def __init__(
        self,
        label: str,
        *,
        parent: "Part | None" = None,
        kind: PartKind = "unused",
        class_name: str = "",
        attribute: str | None = None,
        name: str | None = None,
        held: tuple[Parameter, ...] = (),
        borrowed: tuple[Parameter, ...] = (),
    ) -> None:
        self.label = label
        self.kind: PartKind = kind
        self.class_name = class_name
        self.attribute = attribute
        self.index = 0
        self.name = name
        self.parent = parent
        self.children: list[Part] = []
        self.held = held
        self.borrowed = borrowed
        self.scopes: list[Scope] = []
        self.calls: list[Call] = []
        self._costs: Costs | None = None
        self.holds = Holdings()
        if parent is not None:
            parent.children.append(self)

    @property
    def costs(self) -> Costs:
        """What all that ran in it and below it costs."""
        # Whoever only counts parameters never asks.
        if self._costs is None:
            self._costs = Costs()
        return self._costs

    @property
    def title(self) -> str:
        """What it is called in the table: its attribute, a root by its class, a block by name."""
        title = self.label if self.attribute is None else self.attribute
        return f"{title}.{self.index}" if self.index else title

    @property
    def unregistered(self) -> bool:
        """Whether it is a module that no module registers, so that no model counts it."""
        return self.kind in ("module", "container") and self.name is None

    def move(self, parent: "Part") -> None:
        """Have it stand in another part, last."""
        if self.parent is not None:
            self.parent.children.remove(self)
        self.parent = parent
        parent.children.append(self)


def held_below(root: Part) -> Iterator[Parameter]:
    """Return what is held below a module, each with its name from there on (`qkv.weight`).

    What no module registers is not among it.
    """
    yield from root.borrowed
    start = len(root.name) + 1 if root.name else 0
    pending = root.children[::-1]
    while pending:
        part = pending.pop()
        if not part.unregistered:
            pending += reversed(part.children)
            for parameter in (*part.held, *part.borrowed):
                yield parameter._replace(name=f"{part.name}.{parameter.name}"[start:])


def walk(root: Part) -> Iterator[Part]:
    """Return a part and all below it, parents first, in the order of the author."""
    pending = [root]
    while pending:
        part = pending.pop()
        yield part
        pending.extend(reversed(part.children))
