"""Where an object that is no writer holds one: a trainer its loggers, an accelerator its trackers.

Nothing is asked of the objects on the way: no property is read and no method called.
"""

import inspect
import types
from collections import deque
from collections.abc import Iterator

from tbscope.checks import table_of

__all__ = ["find_writer"]

_MOST = 5000
_DEEPEST = 6
_PLAIN = (str, bytes, int, float, complex, type, types.ModuleType, types.FunctionType)


def find_writer(value: object) -> str:
    """Return the way to a writer inside an object, as Python says it; empty where none is found.

    >>> class Writer:
    ...     def add_event(self, event: object) -> None: ...
    >>> find_writer(types.SimpleNamespace(name="x", loggers=[Writer()]))
    '.loggers[0]'
    """
    lazily, visits = "", 0
    seen, pending = {id(value)}, deque([("", 0, value)])
    while pending and visits < _MOST:
        visits += 1
        way, depth, holder = pending.popleft()
        if way and _is_writer(holder):
            return way
        if way and not lazily and _opens_a_writer(holder):
            lazily = way
        for step, held in _held(holder) if depth < _DEEPEST else ():
            if held is None or isinstance(held, _PLAIN) or id(held) in seen:
                continue
            seen.add(id(held))
            pending.append((way + step, depth + 1, held))
    return lazily


def _is_writer(value: object) -> bool:
    names = ("_get_file_writer", "add_event")
    return any(callable(inspect.getattr_static(type(value), name, None)) for name in names)


def _opens_a_writer(value: object) -> bool:
    """Tell whether an object opens its writer when it is first asked for it, as a logger does."""
    return isinstance(inspect.getattr_static(type(value), "experiment", None), property)


def _held(holder: object) -> Iterator[tuple[str, object]]:
    if isinstance(holder, dict):
        for key, value in list(holder.items()):
            if isinstance(key, str | int):
                yield f"[{key!r}]", value
    elif isinstance(holder, list | tuple):
        for index, value in enumerate(list(holder)):
            yield f"[{index}]", value
    else:
        for name, value in _attributes(holder):
            yield f".{_public(holder, name)}", value


def _attributes(holder: object) -> Iterator[tuple[str, object]]:
    held = table_of(holder) or {}
    yield from [(name, value) for name, value in held.items() if isinstance(name, str)]
    for cls in type(holder).__mro__:
        for name, slot in vars(cls).items():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield name, slot.__get__(holder)
                except AttributeError:  # It has not been set.
                    continue


def _public(holder: object, name: str) -> str:
    """Return the name of the property that shows an attribute, where there is one."""
    shown = name.lstrip("_")
    found = inspect.getattr_static(type(holder), shown, None) if shown != name else None
    return shown if isinstance(found, property) else name
