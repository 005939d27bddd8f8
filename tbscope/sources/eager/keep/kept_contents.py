"""What modules and inputs lead to: containers, objects and arrays as they were.

One walk, the nearest first, through whatever plain attribute access leads to. What it meets
is copied shallowly, so that each thing is put back in its place and stays the same thing.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import filterfalse
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from tbscope.sources.eager.keep.kinds import (
    ATTRIBUTES,
    Attributes,
    Kind,
    Part,
    kind_of,
    put_table,
)

__all__ = ["MOST_ARRAY_BYTES", "MOST_OBJECTS", "KeptContents", "Report"]

Report: TypeAlias = Callable[[str, Exception], None]
"""Takes note of a part that could not be put back: its name, and the error."""

MOST_OBJECTS = 200_000
"""How many containers and objects are looked into, modules not counted."""

MOST_ARRAY_BYTES = 256 * 2**20
"""How many bytes of arrays of numpy are copied."""

_FEW = 64


class KeptContents:
    """Containers, objects, arrays and random generators as they were.

    Attributes:
        modes: By the identity of each module among them, the table that has its training flag.
    """

    def __init__(self) -> None:
        self.modes: dict[int, dict[str, Any]] = {}
        self._kept: list[tuple[Any, Part, Any]] = []
        # In lists of their own, as they are many: the tables of names in modules, each with a copy,
        # and containers that are empty and need none.
        self._tables: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._modules: list[tuple[torch.nn.Module, Attributes]] = []
        self._empty: list[Any] = []
        self._tensors: list[torch.Tensor] = []
        self._plans: dict[tuple[type, ...], _Plan] = {}
        self._pending: deque[Any] = deque()
        self._entries: tuple[tuple[str, Any], ...] = (
            ("_parameters", self._tensors),
            ("_buffers", self._tensors),
            ("_modules", self._pending),
        )
        # By identity; each lives on here, so that its identity stays its own.
        self._seen: dict[int, Any] = {}
        self._objects_left = MOST_OBJECTS
        self._objects_left_out = False
        self._bytes_left = MOST_ARRAY_BYTES
        self._bytes_left_out = 0

    def keep(self, things: Iterable[Any]) -> list[torch.Tensor]:
        """Keep things and what they lead to, as they are now; what is kept already stays so.

        Returns:
            The tensors that were not met before, which are not kept.
        """
        self._line_up((*things,))
        pending, seen = self._pending, self._seen
        while pending:
            thing = pending.popleft()
            if id(thing) in seen:
                continue
            seen[id(thing)] = thing
            kind = kind_of(type(thing))
            assert kind is not None
            if kind.sort == "module":
                self._keep_module(thing, kind)
            elif self._affords(thing, kind):
                self._keep(thing, kind)
        tensors = {id(tensor): tensor for tensor in self._tensors if id(tensor) not in seen}
        seen.update(tensors)
        self._tensors.clear()
        return [*tensors.values()]

    def keep_alone(self, container: Any) -> None:
        """Keep a container as it is now, and nothing that it leads to."""
        kind = kind_of(type(container))
        assert kind is not None
        self._kept += [(container, part, part.take(container)) for part in kind.parts]

    def _keep_module(self, module: torch.nn.Module, kind: Kind) -> None:
        found = ATTRIBUTES.take(module)
        before = found[2]
        self._modules.append((module, found))
        if "training" in before:
            self.modes[id(module)] = before
        self._line_up((*before.values(),))
        # A short way for the tables that each module has: their keys are names.
        for name, lined_up in self._entries:
            entries = before.get(name)
            if entries and type(entries) is dict and id(entries) not in self._seen:
                self._seen[id(entries)] = entries
                self._tables.append((entries, entries.copy()))
                lined_up += [entry for entry in entries.values() if entry is not None]
        for part in kind.parts:
            held = part.take(module)
            self._kept.append((module, part, held))
            if isinstance(held, dict) and "training" in held:
                self.modes[id(module)] = held
            self._line_up((*part.entries(held),))

    def _keep(self, thing: Any, kind: Kind) -> None:
        if kind.inside is not None:
            self._line_up((*kind.inside(thing),))
        for part in kind.parts:
            before = part.take(thing)
            entries = (*part.entries(before),)
            if part is ATTRIBUTES and any(map(_is_machine, entries)):
                # What threads work on is no longer as it was, whatever the model does.
                continue
            self._kept.append((thing, part, before))
            self._line_up(entries)

    def _line_up(self, things: tuple[Any, ...]) -> None:
        """Have the walk look into things; those that hold nothing that changes are left out."""
        types = (*map(type, things),)
        plan = self._plans.get(types)
        if plan is None:
            if len(types) > _FEW and not any(map(kind_of, {*types})):
                return
            plan = self._plans[types] = _Plan(types)
        if plan.containers is not None:
            containers = plan.containers(things)
            self._empty += filterfalse(None, containers)
            self._pending += filter(None, containers)
        if plan.tensors is not None:
            self._tensors += plan.tensors(things)
        if plan.others is not None:
            # Most are tuples of numbers, such as the size of a kernel: nothing to change.
            self._pending += [
                thing
                for thing in plan.others(things)
                if type(thing) is not tuple or any(map(kind_of, map(type, thing)))
            ]

    def _affords(self, thing: Any, kind: Kind) -> bool:
        """Whether a thing is few enough to be kept."""
        if not self._objects_left:
            self._objects_left_out = True
            return False
        self._objects_left -= 1
        if kind.sort == "array":
            # One that is locked cannot change.
            if not thing.flags.writeable:
                return False
            if thing.nbytes > self._bytes_left:
                self._bytes_left_out += thing.nbytes
                return False
            self._bytes_left -= thing.nbytes
        return True

    def left(self) -> list[str]:
        """Return in sentences what is not kept."""
        left = []
        if self._objects_left_out:
            left.append(
                f"the model and its inputs lead to more than {MOST_OBJECTS:,} objects: what the "
                "run changed in the others is not put back"
            )
        if self._bytes_left_out:
            left.append(
                f"{self._bytes_left_out:,} bytes in arrays of numpy were not copied: what the "
                "run wrote into them is not put back"
            )
        return left

    def restore(self, report: Report) -> None:
        """Put everything back."""
        for module, before in self._modules:
            cls, table, attributes = before
            table.update(attributes)
            if (
                len(table) != len(attributes)
                or type(module) is not cls
                or module.__dict__ is not table
            ):
                self._kept.append((module, ATTRIBUTES, before))
        for table, entries in self._tables:
            put_table(table, entries)
        for container in filter(None, self._empty):
            container.clear()
        # The last first: those that came later may have been changed already.
        for thing, part, before in reversed(self._kept):
            try:
                part.put(thing, before)
            except Exception as error:  # noqa: BLE001 (reported)
                report(_name_of(thing), error)


class _Plan:
    """The positions of things that may change, among things of some types.

    Attributes:
        containers: Returns the containers of Python's own classes among such things.
        tensors: Returns the tensors.
        others: Returns the others that may change.
    """

    __slots__ = ("containers", "others", "tensors")

    def __init__(self, types: tuple[type, ...]) -> None:
        kinds = {cls: kind_of(cls) for cls in {*types}}
        sorts = [kind and kind.sort for kind in map(kinds.__getitem__, types)]
        self.containers = _picker(sorts, {"plain"})
        self.tensors = _picker(sorts, {"tensor"})
        self.others = _picker(sorts, {*sorts} - {None, "plain", "tensor"})


def _picker(sorts: list[Any], wanted: set[Any]) -> Callable[[Any], Iterable[Any]] | None:
    """Return what takes the things of some sorts out of a tuple; None where there are none."""
    if wanted.isdisjoint(sorts):
        return None
    places = [at for at, sort in enumerate(sorts) if sort in wanted]
    # Of one alone, `itemgetter` would return no tuple.
    return itemgetter(*places) if places[1:] else itemgetter(slice(places[0], places[0] + 1))


def _name_of(thing: Any) -> str:
    kind, name = kind_of(type(thing)), type(thing).__name__
    if kind is not None and kind.sort == "module":
        return f"the attributes of {name}"
    return f"the generator {name}" if kind is not None and kind.sort == "generator" else f"a {name}"


def _is_machine(thing: Any) -> bool:
    kind = kind_of(type(thing))
    return kind is not None and kind.sort == "machine"
