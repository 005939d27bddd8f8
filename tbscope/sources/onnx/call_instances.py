"""Places: the calls of modules that the nodes of an ONNX model stand in, one by one.

The file tells of a node in which module it ran, and not in which call of it. Nodes stand in the
order in which they ran: who comes back into a module that was left, and does there what was
done before, is in another call of it.
"""

from collections.abc import Mapping, Sequence

from tbscope.sources.onnx.metadata import Level, Origin

__all__ = ["Place", "Places"]


class Place:
    """One call of a module; compared by identity.

    Attributes:
        parent: The call around it; None for the outermost.
        level: The module.
        number: Which call of the module it is.
        done: The operations that ran in it, each with the modules around it.
    """

    __slots__ = ("done", "level", "number", "parent")

    def __init__(self, level: Level, parent: "Place | None", number: int) -> None:
        self.level = level
        self.parent = parent
        self.number = number
        self.done: set[tuple[str, ...]] = set()

    def path(self) -> list["Place"]:
        """Return the calls down to this one, outermost first."""
        return [*(self.parent.path() if self.parent else []), self]


class Places:
    """The calls of one model, found node by node.

    Args:
        numbers: For the operations of which it is known (`linear_1`), which call of each
            module around them they ran in, outermost first.
    """

    def __init__(self, numbers: Mapping[str, Sequence[int]] | None = None) -> None:
        self._numbers = numbers or {}
        self._before: list[Place] = []
        self._last: dict[tuple[Place | None, Level], Place] = {}
        self._known: dict[tuple[Place | None, Level, int], Place] = {}
        self._count: dict[Level, int] = {}

    def of(self, origin: Origin) -> Place | None:
        """Return the call that the next node stands in; None for one outside of all modules."""
        known = self._numbers.get(origin.name)
        if known is not None and len(known) == len(origin.levels):
            path = self._exact(origin.levels, known)
        else:
            path = self._found(origin)
        names = [level.name for level in origin.levels]
        for depth, place in enumerate(path):
            place.done.add((*names[depth + 1 :], origin.target))
        self._before = path
        return path[-1] if path else None

    def _exact(self, levels: Sequence[Level], numbers: Sequence[int]) -> list[Place]:
        path: list[Place] = []
        for level, number in zip(levels, numbers, strict=True):
            around = path[-1] if path else None
            place = self._known.get((around, level, number))
            if place is None:
                place = self._known[around, level, number] = Place(level, around, number)
            path.append(place)
        return path

    def _found(self, origin: Origin) -> list[Place]:
        path: list[Place] = []
        same = True
        names = [level.name for level in origin.levels]
        for depth, level in enumerate(origin.levels):
            around = path[-1] if path else None
            if same and depth < len(self._before) and self._before[depth].level == level:
                path.append(self._before[depth])
                continue
            same = False
            place = self._last.get((around, level))
            if place is None or (*names[depth + 1 :], origin.target) in place.done:
                number = self._count.get(level, 0)
                self._count[level] = number + 1
                place = self._last[around, level] = Place(level, around, number)
            path.append(place)
        return path
