"""What modules and inputs lead to: containers, objects and arrays with what they held.

One walk, the nearest first, through whatever plain attribute access leads to. What it meets
is copied shallowly, so that each thing is put back in its place and stays the same thing.
"""

import types
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch

from tbscope.sources.eager.keep.kinds import (
    OBJECT,
    SLOTS,
    Kind,
    Part,
    is_foreign,
    is_installed,
    kind_of,
)
from tbscope.sources.eager.keep.witnesses import CACHE, Witness, forget, witness_of
from tbscope.sources.torch.internals import is_stand_in

__all__ = ["MOST_ARRAY_BYTES", "MOST_OBJECTS", "KeptContents", "Report", "holds_stand_ins"]

Report: TypeAlias = Callable[[str, Exception], None]
"""Takes note of a part that could not be put back: what it is, and what was raised."""

MOST_OBJECTS = 200_000
"""How many containers and objects are looked into."""

MOST_ARRAY_BYTES = 256 * 2**20
"""How many bytes of arrays of numpy are copied."""

_FEW = 32
_A_FEW = 5_000
_MISSING = object()
# By class of an installed package, the attributes that hold what may change: no others are
# made there later. None for other classes, whose attributes are all looked at each time.
_shared_names: WeakKeyDictionary[type, list[str] | None] = WeakKeyDictionary()
_CODE = (types.FunctionType, property, staticmethod, classmethod, types.MemberDescriptorType)


class KeptContents:
    """Containers, objects and arrays with what they held, and what was found on the way.

    Args:
        most_objects: How many are looked into, the nearest first.
        most_array_bytes: How many bytes of arrays of numpy are copied, the nearest first.

    Attributes:
        tensors: The tensors in them.
        generators: The random generators in them.
        modules: The modules in them.
        functions: The functions of users in them.
        objects_left_out: Whether there were more than are kept.
        bytes_left_out: How many bytes of arrays were not copied.
    """

    def __init__(
        self,
        *,
        most_objects: int = MOST_OBJECTS,
        most_array_bytes: int = MOST_ARRAY_BYTES,
    ) -> None:
        self.tensors: list[torch.Tensor] = []
        self.generators: list[Any] = []
        self.modules: list[torch.nn.Module] = []
        self.functions: list[types.FunctionType] = []
        self.objects_left_out = False
        self.bytes_left_out = 0
        self._parts: list[tuple[Any, Part, Any]] = []
        self._classes: dict[type, dict[str, Any] | None] = {}
        self._witnessed: list[tuple[Any, Witness, Any]] = []
        self._pending: deque[Any] = deque()
        # By their ids: whoever is in here lives on in one of the copies.
        self._seen: set[int] = set()
        self._objects_left = most_objects
        self._bytes_left = most_array_bytes

    def add(self, thing: Any) -> None:
        """Have the next walk begin at a thing, too; what holds nothing is left alone."""
        if kind_of(type(thing)) is not None and id(thing) not in self._seen:
            self._pending.append(thing)

    def walk(self) -> None:
        """Keep what was added, and what that leads to."""
        pending, seen = self._pending, self._seen
        found: dict[str, list[Any]] = {
            "tensor": self.tensors,
            "generator": self.generators,
            "module": self.modules,
            "function": self.functions,
        }
        while pending:
            thing = pending.popleft()
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            kind = kind_of(type(thing))
            assert kind is not None
            if kind.sort in found:
                found[kind.sort].append(thing)
            elif kind.sort == "witness" or kind.sort == "machine":
                self._witness(thing)
            else:
                self._keep(thing, kind)

    def add_class(self, cls: type) -> None:
        """Keep what attributes of a class, and of the classes it is made from, lead to.

        Which values the attributes have is told, and not put back: all objects share them.
        """
        for base in cls.__mro__:
            if base in self._classes:
                # Those that it is made from were met with it.
                return
            self._classes[base] = None
            if base not in _shared_names:
                held = {} if is_foreign(base) else _attributes_of(base)
                _shared_names[base] = (
                    [
                        name
                        for name, value in held.items()
                        if type(value) not in _CODE and kind_of(type(value)) is not None
                    ]
                    if is_installed(base) or not held
                    else None
                )
            names = _shared_names[base]
            if names is None:
                held = self._classes[base] = _attributes_of(base)
                self._add_entries([one for one in held.values() if type(one) not in _CODE])
            else:
                self._add_entries([vars(base).get(name) for name in names])

    def add_slots(self, module: torch.nn.Module) -> None:
        """Keep the slots of a module, whose attributes are kept."""
        self._keep_part(module, SLOTS)

    def restore(self, report: Report) -> None:
        """Put everything back."""
        for cls, name, before in self._rebound():
            if holds_stand_ins(vars(cls).get(name)):
                # By no `__setattr__` that a metaclass may have.
                type.__delattr__(cls, name)
                if before is not _MISSING:
                    type.__setattr__(cls, name, before)
        for thing, part, held in self._parts:
            try:
                if not part.same(thing, held):
                    part.put(thing, held)
            except Exception as error:  # noqa: BLE001 (reported)
                report(f"a {type(thing).__name__}", error)

        self.forget()

    def forget(self) -> None:
        """Empty the caches of functions that the run began to fill, or filled with stand-ins."""
        for thing, ask, before in self._witnessed:
            if isinstance(thing, CACHE) and _answer(ask, thing) != before:
                forget(thing, before)

    def is_changed(self) -> bool:
        """Tell whether anything is not as it was."""
        return (
            any(not part.same(thing, held) for thing, part, held in self._parts)
            or any(True for _ in self.rebound())
            or any(True for _ in self.moved_on())
        )

    def rebound(self) -> Iterator[str]:
        """Yield the names of the attributes of classes that are others now."""
        for cls, name, _ in self._rebound():
            yield f"{cls.__name__}.{name}"

    def _rebound(self) -> Iterator[tuple[type, str, Any]]:
        for cls, before in self._classes.items():
            if before is None:
                continue
            now = _attributes_of(cls)
            if len(now) == len(before) and all(map(is_, now.values(), before.values())):
                continue
            for name in dict.fromkeys((*before, *now)):
                held = before.get(name, _MISSING)
                if now.get(name, _MISSING) is not held:
                    yield cls, name, held

    def moved_on(self) -> Iterator[Any]:
        """Yield what was changed and nobody can put back: iterators, files, locks."""
        for thing, ask, before in self._witnessed:
            if _answer(ask, thing) != before:
                yield thing

    def _witness(self, thing: Any) -> None:
        ask = witness_of(type(thing))
        if ask is not None:
            self._witnessed.append((thing, ask, _answer(ask, thing)))

    def _keep(self, thing: Any, kind: Kind) -> None:
        """Keep what one thing holds, and line up what that leads to."""
        if not self._objects_left:
            self.objects_left_out = True
            return
        self._objects_left -= 1
        if kind.sort == "array" and not self._affords(thing):
            return
        if kind.inside is not None:
            self._add_entries(kind.inside(thing))
        for part in kind.parts:
            if part is OBJECT:
                self.add_class(type(thing))
            if not self._keep_part(thing, part):
                return

    def _keep_part(self, thing: Any, part: Part) -> bool:
        held = part.take(thing)
        entries = [*part.entries(held)]
        if part is OBJECT and any(_is_machine(entry) for entry in entries):
            # What threads work on is no longer as it was, whatever the model does.
            return False
        self._parts.append((thing, part, held))
        self._add_entries(entries)
        return True

    def _add_entries(self, entries: Iterable[Any]) -> None:
        entries = [*entries]
        if len(entries) > _FEW and not any(map(kind_of, {*map(type, entries)})):
            return
        for entry in entries:
            if kind_of(type(entry)) is not None and id(entry) not in self._seen:
                self._pending.append(entry)

    def _affords(self, thing: Any) -> bool:
        """Tell whether an array is copied."""
        if isinstance(thing, array):
            size_bytes = len(thing) * thing.itemsize
        elif not thing.flags.writeable:
            return False
        else:
            size_bytes = thing.nbytes
        if size_bytes > self._bytes_left:
            self.bytes_left_out += size_bytes
            return False
        self._bytes_left -= size_bytes
        return True


def _is_machine(thing: Any) -> bool:
    kind = kind_of(type(thing))
    return kind is not None and kind.sort == "machine"


def _answer(ask: Witness, thing: Any) -> Any:
    try:
        return ask(thing)
    except Exception:  # noqa: BLE001 (foreign code: what it cannot tell is not known)
        return None


def _attributes_of(cls: type) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if name[:2] != "__"}


def holds_stand_ins(nest: Any) -> bool:
    """Tell whether a stand-in for a tensor is among what something leads to."""
    contents = KeptContents(most_objects=_A_FEW)
    contents.add(nest)
    contents.walk()
    return any(map(is_stand_in, contents.tensors))
