"""Module calls of an ONNX model, found node by node.

The file has the module of each node, but not the call of the module. Nodes are in the order in
which they ran: a node that returns to a module after nodes elsewhere continues the latest call of
it, or begins another call if the latest call has already run the operation of the node.
"""

from collections.abc import Mapping, Sequence

from tbscope.sources.onnx.metadata import ModuleRef, Origin

__all__ = ["CallFinder", "ModuleCall"]


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


class CallFinder:
    """The calls of one model, found node by node.

    Args:
        numbers: The call numbers of the enclosing modules, outermost first, by the name of an
            operation (`linear_1`); other operations are placed by their order.
    """

    def __init__(self, numbers: Mapping[str, Sequence[int]] | None = None) -> None:
        self._numbers = numbers or {}
        self._before: list[ModuleCall] = []
        self._last: dict[tuple[ModuleCall | None, ModuleRef], ModuleCall] = {}
        self._known: dict[tuple[ModuleCall | None, ModuleRef, int], ModuleCall] = {}
        self._count: dict[ModuleRef, int] = {}

    def of(self, origin: Origin) -> ModuleCall | None:
        """Return the innermost call of the next node, or None for a node outside of all modules."""
        numbers = self._numbers.get(origin.name)
        if numbers is not None and len(numbers) == sum(not it.by_hand for it in origin.levels):
            path = self._exact(origin.levels, numbers)
        else:
            path = self._inferred(origin)
        names = [level.name for level in origin.levels]
        for depth, call in enumerate(path):
            call.done.add((*names[depth + 1 :], origin.target))
        self._before = path
        return path[-1] if path else None

    def _exact(self, levels: Sequence[ModuleRef], numbers: Sequence[int]) -> list[ModuleCall]:
        path: list[ModuleCall] = []
        of_module = iter(numbers)
        for level in levels:
            number = 0 if level.by_hand else next(of_module)
            parent = path[-1] if path else None
            call = self._known.get((parent, level, number))
            if call is None:
                call = self._known[parent, level, number] = ModuleCall(level, parent, number)
            path.append(call)
        return path

    def _inferred(self, origin: Origin) -> list[ModuleCall]:
        path: list[ModuleCall] = []
        is_open = True
        names = [level.name for level in origin.levels]
        for depth, level in enumerate(origin.levels):
            parent = path[-1] if path else None
            if is_open and depth < len(self._before) and self._before[depth].level == level:
                path.append(self._before[depth])
                continue
            is_open = False
            call = self._last.get((parent, level))
            again = not level.by_hand and (*names[depth + 1 :], origin.target)
            if call is None or again in call.done:
                number = self._count.get(level, 0)
                self._count[level] = number + 1
                call = self._last[parent, level] = ModuleCall(level, parent, number)
            path.append(call)
        return path
