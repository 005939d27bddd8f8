"""Arguments and results as the graph keeps them: tensors as values, the rest as text.

Containers and records are entered, since this runs for every operation and every
module call; other objects that may hold tensors somewhere are walked at the border of
a graph only (`nests`).
"""

from collections import UserList, deque
from collections.abc import Callable, Mapping, ValuesView
from typing import Any

import torch

from tbscope.ir.graph import Constant, Value
from tbscope.messages import shown, text_of
from tbscope.sources.torch.calling.pytree import fields_of, key_text
from tbscope.sources.torch.compat.tensors import class_in_torch
from tbscope.utils.validation import attribute_of

__all__ = ["FILLED", "Literals", "all_among"]

FILLED = Constant("<out>")
"""Stands for an argument `out` that an operation fills, and does not read."""

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PLAIN = frozenset({bool, int, float, complex, type(None)})
_OF_TORCH = frozenset({torch.dtype, torch.device, torch.layout, torch.memory_format})
_MOST_TEXT = 200
_MOST_ITEMS = 64
# Deeper ones are cut.
_MOST_DEPTH = 50
_LISTS = (tuple, list, deque, UserList, ValuesView)
# Numbers beyond are told by their size; Python prints none of more than 4,300 digits.
_LARGE = 2**1024


class Literals:
    """Turns arguments and results into nests of values and constants.

    Args:
        value_of: Returns the value that a tensor holds now.
        lying_in: Returns a tensor that lies in a storage, other than those that are read already;
            None for none that is known.
    """

    def __init__(
        self,
        value_of: Callable[[torch.Tensor], Value | Constant],
        lying_in: Callable[[Any, list[torch.Tensor]], torch.Tensor | None] | None = None,
    ) -> None:
        self._value_of = value_of
        self._lying_in = lying_in
        # The containers that are being entered, by identity: one may hold itself.
        self._around: list[int] = []
        # The records that hold others and were entered: records may be a graph, of many ways.
        self._met: set[int] = set()

    def nest(
        self, given: Any, tensors: list[torch.Tensor] | None = None, values: Any = None
    ) -> Any:
        """Return the nest of values and constants for an argument or a result.

        Args:
            given: Anything.
            tensors: Where to add each tensor met, in order; None for nowhere.
            values: Where to add its value; None for nowhere.
        Returns:
            Values for tensors, constants as they are, containers as list, tuple or dict,
            and a `Constant` with its text for everything else.
        """
        kind = type(given)
        if kind in _PLAIN:
            if kind is int and not -_LARGE < given < _LARGE:
                return Constant(shown(given))
            return given
        if kind in _TENSORS or isinstance(given, torch.Tensor):
            value = self._value_of(given)
            if tensors is not None:
                tensors.append(given)
                values.append(value)
            return value
        if kind is str:
            return given if len(given) <= _MOST_TEXT else given[:_MOST_TEXT] + "..."
        if kind is slice:
            bounds = (given.start, given.stop, given.step)
            if any(isinstance(bound, torch.Tensor) for bound in bounds):
                return [self.nest(bound, tensors, values) for bound in bounds]
            start, stop, step = (
                "" if end is None else text_of(end if type(end) in _PLAIN else describe(end))
                for end in bounds
            )
            return Constant(f"{start}:{stop}:{step}" if step else f"{start}:{stop}")
        if kind is torch.UntypedStorage and self._lying_in is not None:
            # Whoever reads a storage reads the tensor whose memory it is. By now, so is that of
            # the one which has been set to it.
            tensor = self._lying_in(given, tensors or [])
            if tensor is not None:
                return self.nest(tensor, tensors, values)
        names, entries, is_record = _entries_of(given)
        if names is None and not isinstance(given, _LISTS):
            return describe(given)
        if is_record and self._around and id(given) in self._met:
            return Constant("{...}")
        nest = self._entered(given, names, entries, tensors, values)
        if is_record and any(map(_is_entered, entries)):
            self._met.add(id(given))
        return nest

    def _entered(self, given: Any, names: Any, entries: Any, tensors: Any, values: Any) -> Any:
        """Return the nest of a container; less where it is long, deep, or inside of itself."""
        around, cut = self._around, ""
        if not around:
            self._met.clear()
        if len(entries) > _MOST_ITEMS and not any(
            isinstance(entry, torch.Tensor) or _is_entered(entry) for entry in entries
        ):
            cut = f"... {len(entries)} items" if names is None else f"... {len(entries)} entries"
        elif len(around) > _MOST_DEPTH or id(given) in around:
            cut = "..."
        if cut and names is not None:
            return Constant(f"{{{cut}}}")
        around.append(id(given))
        try:
            nest = (
                [Constant(cut)] if cut else [self.nest(each, tensors, values) for each in entries]
            )
        finally:
            around.pop()
        if names is None:
            return tuple(nest) if isinstance(given, tuple) else nest
        named: dict[str, Any] = {}
        for position, (key, entry) in enumerate(zip(names, nest, strict=True)):
            text = key_text(key, position)
            # What is of the same text is another key.
            named[f"{text}.{position}" if text in named else text] = entry
        return named


def _is_entered(given: Any) -> bool:
    if isinstance(given, tuple | list | Mapping):
        return type(given) is not torch.Size
    return bool(fields_of(given))


def collect_tensors(
    given: Any, found: list[torch.Tensor], entered: set[int] | None = None
) -> list[torch.Tensor]:
    """Add the tensors in a nest to a list, in the order of `Literals.nest`; return the list.

    Args:
        given: The nest.
        found: The list.
        entered: The containers around the nest and the records before it that hold others, by
            identity; None for none.
    """
    kind = type(given)
    if kind in _TENSORS or isinstance(given, torch.Tensor):
        found.append(given)
    elif kind not in _PLAIN and kind is not str and kind is not torch.Size:
        entered = set() if entered is None else entered
        if id(given) not in entered:
            _, entries, is_record = _entries_of(given)
            entered.add(id(given))
            for entry in entries:
                collect_tensors(entry, found, entered)
            if not (is_record and any(map(_is_entered, entries))):
                entered.discard(id(given))
    return found


def _entries_of(given: Any) -> tuple[Any, Any, bool]:
    """Return the names and the entries of a container or record, and whether it is a record.

    None for the names of what has none, and no entries of what is neither.
    """
    if isinstance(given, _LISTS):
        names = getattr(given, "_fields", None)
        return names if names is not None and len(names) == len(given) else None, given, False
    is_record = not isinstance(given, Mapping)
    try:
        pairs = fields_of(given) if is_record else given.items()
        names, entries = zip(*pairs or [], strict=True) if pairs else ((), ())
    except Exception:  # noqa: BLE001  The model may never look into it either.
        return None, (), False
    return (None if is_record and not names else names), entries, is_record


def all_among(results: list[torch.Tensor], given: Any) -> bool:
    """Tell whether each result is one of the tensors in a nest."""
    if not results:
        return True
    known = {id(tensor) for tensor in collect_tensors(given, [])}
    return all(id(tensor) in known for tensor in results)


def describe(given: Any) -> Any:
    """Return a constant for an object that is no tensor and no plain container.

    Its `repr` is never used: it could be long, differ from run to run, or run code.
    """
    kind = type(given)
    if kind is Constant:
        # What stands for an argument already.
        return given
    if kind in _OF_TORCH:
        return Constant(str(given))
    if given is Ellipsis:
        return Constant("...")
    if isinstance(given, bool | int | float | complex):
        # A subclass: an IntEnum, a numpy float.
        plain: Any = next(each for each in (int, float, complex) if isinstance(given, each))
        return Constant(f"{kind.__name__}({shown(plain(given))})")
    if isinstance(given, str):
        return text_of(given)[:_MOST_TEXT]
    if isinstance(given, type) or callable(given):
        name = attribute_of(given, "__qualname__") or kind.__qualname__
        return Constant(f"<{name}>")
    return Constant(f"<{class_in_torch(given) or kind.__qualname__}>")
