"""What modules and inputs lead to: containers, objects and arrays as they were.

One walk, the nearest first, through whatever plain attribute access leads to. What it meets
is copied shallowly, so that each thing is put back in its place and stays the same thing.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeAlias

import torch

from tbscope.sources.eager.keep.kinds import ATTRIBUTES, Kind, Part, kind_of

__all__ = ["MOST_ARRAY_BYTES", "MOST_OBJECTS", "KeptContents", "Report"]

Report: TypeAlias = Callable[[str, Exception], None]
"""Takes note of a part that could not be put back: its name, and the error."""

MOST_OBJECTS = 200_000
"""How many containers and objects are looked into, modules not counted."""

MOST_ARRAY_BYTES = 256 * 2**20
"""How many bytes of arrays of numpy are copied."""


class _Kinds(dict[type, Kind | None]):
    """The kinds of the classes that were met."""

    def __missing__(self, cls: type) -> Kind | None:
        kind = self[cls] = kind_of(cls)
        return kind


class KeptContents:
    """Containers, objects, arrays and random generators as they were.

    Attributes:
        modes: By the identity of each module among them, the table that has its training flag.
    """

    def __init__(self) -> None:
        self.modes: dict[int, dict[str, Any]] = {}
        self._kept: list[tuple[Any, Part, Any]] = []
        # Containers that are empty are many, and need no copy.
        self._empty: list[Any] = []
        self._kinds = _Kinds()
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
        tensors: list[torch.Tensor] = []
        pending = deque(self._changing([*things]))
        while pending:
            thing, kind = pending.popleft()
            if id(thing) in self._seen:
                continue
            self._seen[id(thing)] = thing
            if kind.sort == "tensor":
                tensors.append(thing)
            elif kind.sort == "module" or self._affords(thing, kind):
                if kind.inside is not None:
                    pending += self._changing([*kind.inside(thing)])
                for part in kind.parts:
                    pending += self._keep(thing, kind, part)
        return tensors

    def _changing(self, things: Collection[Any]) -> list[tuple[Any, Kind]]:
        """Return those of some things that a run may change, each with its kind."""
        kinds = self._kinds
        if not any(map(kinds.__getitem__, {*map(type, things)})):
            return []
        changing = []
        for thing in things:
            kind = kinds[type(thing)]
            if kind is not None:
                if kind.sort == "plain" and not thing:
                    self._empty.append(thing)
                else:
                    changing.append((thing, kind))
        return changing

    def _keep(self, thing: Any, kind: Kind, part: Part) -> list[tuple[Any, Kind]]:
        """Keep a part of a thing; return what of it may change."""
        before = part.take(thing)
        entries = [*part.entries(before)]
        if kind.sort == "module":
            table = before[2] if part is ATTRIBUTES else before
            if isinstance(table, dict) and "training" in table:
                self.modes[id(thing)] = table
        elif part is ATTRIBUTES and any(
            inner is not None and inner.sort == "machine"
            for inner in map(self._kinds.__getitem__, map(type, entries))
        ):
            # What threads work on is no longer as it was, whatever the model does.
            return []
        self._kept.append((thing, part, before))
        return self._changing(entries)

    def keep_alone(self, container: Any) -> None:
        """Keep a container as it is now, and nothing that it leads to."""
        kind = self._kinds[type(container)]
        assert kind is not None
        self._kept += [(container, part, part.take(container)) for part in kind.parts]

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
        for container in filter(None, self._empty):
            container.clear()
        # The last first: those that came later may have been changed already.
        for thing, part, before in reversed(self._kept):
            try:
                part.put(thing, before)
            except Exception as error:  # noqa: BLE001 (reported)
                kind, name = self._kinds[type(thing)], type(thing).__name__
                named = {"module": "the attributes of", "generator": "the generator"}
                report(f"{named.get(kind.sort if kind else '', 'a')} {name}", error)
