"""Module calls of an ONNX model, found node by node.

The file has the module of each node, but not the call of the module. Nodes are in the order in
which they ran: a node that returns to a module after nodes elsewhere continues the latest call of
it, or begins another call if the latest call has already run the operation of the node, or if the
node depends on the latest call through nodes outside of it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

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
