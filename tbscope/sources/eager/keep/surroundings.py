"""What code of a model can reach beside the model: globals, closures, attributes of functions.

Others share them, and some read them after the run: they stay as the run leaves them, and
what was changed is told. Only stand-ins for tensors stay nowhere. The code of installed
packages is not read for this.
"""

import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from tbscope.checks import attribute_of
from tbscope.sources.eager.keep.kept_contents import KeptContents, Report, holds_stand_ins
from tbscope.sources.eager.keep.kinds import is_foreign, is_installed, kind_of
from tbscope.sources.torch.internals import version_of, without_functions

__all__ = ["Surroundings"]

_MOST_FUNCTIONS = 500
_MISSING = object()
_names: WeakKeyDictionary[types.CodeType, tuple[str, ...]] = WeakKeyDictionary()


class _Place(NamedTuple):
    """One name through which code reaches something.

    Attributes:
        label: What it is, in words.
        home: The table of globals, or the cell of a closure, that holds it.
        name: Its name.
    """

    label: str
    home: Any
    name: str

    def read(self) -> Any:
        if isinstance(self.home, dict):
            return self.home.get(self.name, _MISSING)
        try:
            return self.home.cell_contents
        except ValueError:  # Nothing was bound to it so far.
            return _MISSING

    def write(self, value: Any) -> None:
        if not isinstance(self.home, dict):
            if value is _MISSING:
                del self.home.cell_contents
            else:
                self.home.cell_contents = value
        elif value is _MISSING:
            self.home.pop(self.name, None)
        else:
            self.home[self.name] = value


class _Held(NamedTuple):
    """What stood at a place, what it led to, and the tensors there with their versions.

    What stood at one that is kept is put back there.
    """

    place: _Place
    value: Any
    contents: KeptContents | None
    versions: list[tuple[torch.Tensor, int]]
    kept: bool = False


class Surroundings:
    """What functions reach by name, as it was.

    Attributes:
        generators: The random generators found there.
    """

    def __init__(self) -> None:
        self.generators: list[Any] = []
        self._held: list[_Held] = []
        # Each with whether it is kept.
        self._functions: set[tuple[int, bool]] = set()
        self._places: set[tuple[int, str, bool]] = set()

    def add(
        self,
        function: Any,
        cls: type | None = None,
        *,
        keep: Callable[[Any], None] | None = None,
    ) -> None:
        """Keep what a function, and those that it calls, reach by name.

        Args:
            function: The function.
            cls: The class whose methods it may call.
            keep: Keeps a thing with what it leads to, so that all is put back that they reach;
                None: what was changed is told.
        """
        pending = [(function, cls)]
        while pending and len(self._functions) < _MOST_FUNCTIONS:
            function, cls = pending.pop()
            known = id(function), keep is not None
            if known in self._functions:
                continue
            self._functions.add(known)
            if keep is not None:
                keep((function.__defaults__, function.__kwdefaults__))
            if is_foreign(function) or is_installed(function):
                # A wrapper from a library leads to what it wraps.
                pending += [(inner, cls) for inner in _functions_around(function)]
                for place in _variables_around(function) if keep is not None else ():
                    self._hold(place, place.read(), keep)
                continue
            pending += [(method, cls) for method in _methods_named(function, cls)]
            for place in _places_of(function):
                value = place.read()
                wrapped = attribute_of(value, "__wrapped__") if callable(value) else None
                for called in (value, wrapped):
                    if isinstance(called, types.FunctionType):
                        pending.append((called, cls))
                found = id(place.home), place.name, keep is not None
                if found not in self._places:
                    self._places.add(found)
                    self._hold(place, value, keep)

    def _hold(self, place: _Place, value: Any, keep: Callable[[Any], None] | None) -> None:
        kind = kind_of(type(value))
        if keep is not None and not isinstance(value, type):
            keep(value)
            self._held.append(_Held(place, value, None, [], kept=True))
            return
        if isinstance(value, type) and not issubclass(value, torch.nn.Module):
            contents = _Few()
            contents.add_class(value)
        elif kind is None or kind.sort in ("module", "function"):
            self._held.append(_Held(place, value, None, []))
            return
        else:
            contents = _Few()
            contents.add(value)
        contents.walk()
        self.generators += contents.generators
        with without_functions():
            tensors = [held for held in contents.tensors if not held.is_inference()]
            versions = [(tensor, version_of(tensor)) for tensor in tensors]
        self._held.append(_Held(place, value, contents, versions))

    def settle(self, report: Report) -> list[str]:
        """Put back what holds stand-ins for tensors now; return what else was changed, in words."""
        left = []
        # What is put back first is as it was for whatever reaches it, too.
        for held in sorted(self._held, key=lambda held: not held.kept):
            if held.contents is not None:
                held.contents.forget()
            now = held.place.read()
            if now is held.value and not _is_changed(held):
                continue
            if held.kept or holds_stand_ins(now):
                _put_back(held, report)
            else:
                left.append(held.place.label)
        return left


def _put_back(held: _Held, report: Report) -> None:
    try:
        held.place.write(held.value)
    except Exception as error:  # noqa: BLE001 (reported)
        report(held.place.label, error)
    if held.contents is not None:
        held.contents.restore(report)


_Few = partial(KeptContents, most_objects=5_000, most_array_bytes=16 * 2**20)


def _is_changed(held: _Held) -> bool:
    return any(version_of(tensor) != version for tensor, version in held.versions) or (
        held.contents is not None and held.contents.is_changed()
    )


def _functions_around(function: Any) -> Iterator[Any]:
    """Yield the functions among the variables around a function."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # Nothing was bound to it so far.
            if isinstance(cell.cell_contents, types.FunctionType):
                yield cell.cell_contents


def _places_of(function: Any) -> Iterator[_Place]:
    """Yield the names through which a function reaches what is not its own."""
    code = function.__code__
    yield from _variables_around(function)
    table = function.__globals__
    names = _names_in(code)
    for name in names:
        if name not in table:
            continue
        value = table[name]
        yield _Place(f"the global {name} of {table.get('__name__')}", table, name)
        if isinstance(value, types.ModuleType) and not is_foreign(value):
            inside = vars(value)
            for attribute in names:
                if attribute in inside:
                    yield _Place(f"{attribute} of the module {name}", inside, attribute)
    if function.__dict__ or function.__name__ in names:
        home = {"": function.__dict__}
        yield _Place(f"the attributes of the function {function.__qualname__}", home, "")


def _variables_around(function: Any) -> Iterator[_Place]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        if name != "__class__":
            yield _Place(f"the variable {name} around {function.__qualname__}", cell, name)


def _methods_named(function: Any, cls: type | None) -> Iterator[Any]:
    """Yield the methods of a class that a function of it may call."""
    if cls is None:
        return
    for name in _names_in(function.__code__):
        # Looked up by no descriptor, which may run code of the user.
        found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
        found = getattr(found, "fget", None) or getattr(found, "__func__", found)
        if isinstance(found, types.FunctionType):
            yield found


def _names_in(code: types.CodeType) -> tuple[str, ...]:
    """Return the names in a function and in the functions written inside of it."""
    if code not in _names:
        inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
        names = (*code.co_names, *(name for part in inner for name in _names_in(part)))
        _names[code] = tuple(dict.fromkeys(names))
    return _names[code]
