"""Conversion of arguments and results for the graph: tensors to values, other objects to text.

It runs for every operation and module call, so it only enters containers and records. Other
objects with tensors inside are walked for the inputs and outputs of a graph only (`pytree`).
"""

from collections import UserList, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, ValuesView
from typing import Any

import torch

from tbscope.ir.graph import Constant, Value
from tbscope.messages import shown, text_of
from tbscope.sources.torch.calling.pytree import fields_of, key_text
from tbscope.sources.torch.compat.tensors import class_in_torch
from tbscope.utils.validation import attribute_of

FILLED = Constant("<out>")
"""The constant in place of an argument `out`, which an operation fills and does not read."""

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PLAIN = frozenset({bool, int, float, complex, type(None)})
_OF_TORCH = frozenset({torch.dtype, torch.device, torch.layout, torch.memory_format})
_NO_TENSORS = _PLAIN | _OF_TORCH | {str, torch.Size}
_OF_SIZES = frozenset({list, tuple, torch.Size})
_MOST_TEXT = 200
_MOST_ITEMS = 64
# Containers at a greater depth are cut.
_MOST_DEPTH = 50
_LISTS = (tuple, list, deque, UserList, ValuesView)
# Larger integers are shown by their size: Python refuses to print more than 4,300 digits.
_LARGE = 2**1024


class ArgumentConverter:
    """Converts arguments and results to pytrees of values and constants.

    Args:
        value_of: Returns the current value of a tensor.
        lying_in: Returns a recorded tensor in a storage, except those that are read already, or
            None.
    """

    def __init__(
        self,
        value_of: Callable[[torch.Tensor], Value | Constant],
        lying_in: Callable[[Any, list[torch.Tensor]], torch.Tensor | None] | None = None,
    ) -> None:
        self._value_of = value_of
        self._lying_in = lying_in
        # The `id` of the containers being entered: a container may contain itself.
        self._around: list[int] = []
        # The `id` of entered records that contain containers: records may form a graph, with very
        # many paths, so each is entered once.
        self._met: set[int] = set()

    def nest(
        self, argument: Any, tensors: list[torch.Tensor] | None = None, values: Any = None
    ) -> Any:
        """Return the pytree of values and constants for an argument or a result.

        Args:
            argument: Any object.
            tensors: Receives each tensor in order, if it is a list.
            values: Receives the value of each tensor; required with `tensors`.
        Returns:
            Values for tensors, constants as they are, containers as list, tuple or dict, and a
            `Constant` with a text for every other object.
        """
        return self.nests((argument,), tensors, values)[0]

    def nests(
        self,
        arguments: Iterable[Any],
        tensors: list[torch.Tensor] | None = None,
        values: Any = None,
    ) -> list[Any]:
        """Return the pytree of each of several objects (see `nest`)."""
        trees = []
        for each in arguments:
            kind = type(each)
            if kind in _TENSORS or isinstance(each, torch.Tensor):
                value = self._value_of(each)
                if tensors is not None:
                    tensors.append(each)
                    values.append(value)
                trees.append(value)
            elif kind in _PLAIN and (kind is not int or -_LARGE < each < _LARGE):
                trees.append(each)
            else:
                trees.append(self._other(each, kind, tensors, values))
        return trees

    def _other(
        self, argument: Any, kind: type, tensors: list[torch.Tensor] | None, values: Any
    ) -> Any:
        """Return the pytree of an object that is neither a tensor nor a plain number."""
        if kind is int:
            return Constant(shown(argument))
        if kind is str:
            return argument if len(argument) <= _MOST_TEXT else argument[:_MOST_TEXT] + "..."
        if kind is slice:
            bounds = (argument.start, argument.stop, argument.step)
            if any(isinstance(bound, torch.Tensor) for bound in bounds):
                return self.nests(bounds, tensors, values)
            start, stop, step = (
                "" if end is None else text_of(end if type(end) in _PLAIN else describe(end))
                for end in bounds
            )
            return Constant(f"{start}:{stop}:{step}" if step else f"{start}:{stop}")
        if kind is torch.UntypedStorage and self._lying_in is not None:
            # An operation that reads a storage reads the tensor in it. In `set_`, the written
            # tensor is in the storage by now, too, so tensors read already are left out.
            tensor = self._lying_in(argument, tensors or [])
            if tensor is not None:
                return self.nest(tensor, tensors, values)
        if kind in _OF_TORCH:
            return describe(argument)
        if kind in _OF_SIZES and not self._around and _are_sizes(argument):
            return [*argument] if kind is list else tuple(argument)
        names, entries, is_record = _entries_of(argument)
        if names is None and not isinstance(argument, _LISTS):
            return describe(argument)
        if is_record and self._around and id(argument) in self._met:
            return Constant("{...}")
        tree = self._entered(argument, names, entries, tensors, values)
        if is_record and any(map(_is_entered, entries)):
            self._met.add(id(argument))
        return tree

    def _entered(self, container: Any, names: Any, entries: Any, tensors: Any, values: Any) -> Any:
        """Return the pytree of a container, cut if it is long, deep or inside itself."""
        enclosing, cut = self._around, ""
        if not enclosing:
            self._met.clear()
        if len(entries) > _MOST_ITEMS and not any(
            isinstance(entry, torch.Tensor) or _is_entered(entry) for entry in entries
        ):
            cut = f"... {len(entries)} items" if names is None else f"... {len(entries)} entries"
        elif len(enclosing) > _MOST_DEPTH or id(container) in enclosing:
            cut = "..."
        if cut and names is not None:
            return Constant(f"{{{cut}}}")
        enclosing.append(id(container))
        try:
            converted = [Constant(cut)] if cut else self.nests(entries, tensors, values)
        finally:
            enclosing.pop()
        if names is None:
            return tuple(converted) if isinstance(container, tuple) else converted
        mapping: dict[str, Any] = {}
        for position, (key, entry) in enumerate(zip(names, converted, strict=True)):
            text = key_text(key, position)
            # Different keys may have equal texts.
            mapping[f"{text}.{position}" if text in mapping else text] = entry
        return mapping


def _are_sizes(entries: Sequence[Any]) -> bool:
    """Whether a sequence contains only integers, few and small enough to be shown as they are."""
    if len(entries) > _MOST_ITEMS or not {int}.issuperset(map(type, entries)):
        return False
    return max(map(abs, entries), default=0) < _LARGE


def _is_entered(container: object) -> bool:
    if isinstance(container, tuple | list | Mapping):
        return type(container) is not torch.Size
    return bool(fields_of(container))


def collect_tensors(
    argument: Any, tensors: list[torch.Tensor], entered: set[int] | None = None
) -> list[torch.Tensor]:
    """Add the tensors in a pytree to a list, in the order of `nest`; return the list.

    Args:
        argument: The pytree.
        tensors: The list.
        entered: The `id` of the enclosing containers, and of earlier records that contain
            containers; None for none.
    """
    kind = type(argument)
    if kind in _TENSORS or isinstance(argument, torch.Tensor):
        tensors.append(argument)
    elif kind not in _NO_TENSORS:
        entered = set() if entered is None else entered
        if id(argument) not in entered:
            _, entries, is_record = _entries_of(argument)
            entered.add(id(argument))
            for entry in entries:
                # Most entries are tensors and numbers.
                if type(entry) in _TENSORS:
                    tensors.append(entry)
                elif type(entry) not in _NO_TENSORS:
                    collect_tensors(entry, tensors, entered)
            if not (is_record and any(map(_is_entered, entries))):
                entered.discard(id(argument))
    return tensors


def _entries_of(container: Any) -> tuple[Any, Any, bool]:
    """Return the names and the entries of a container or record, and whether it is a record.

    The names are None for entries by position. Other objects have no entries.
    """
    if isinstance(container, _LISTS):
        names = getattr(container, "_fields", None)
        return (
            names if names is not None and len(names) == len(container) else None,
            container,
            False,
        )
    is_record = not isinstance(container, Mapping)
    try:
        pairs = fields_of(container) if is_record else container.items()
        names, entries = zip(*pairs, strict=True) if pairs else ((), ())
    except Exception:  # noqa: BLE001  The model may never read the object either.
        return None, (), False
    return (None if is_record and not names else names), entries, is_record


def all_among(results: list[torch.Tensor], argument: object) -> bool:
    """Whether each result is one of the tensors in a pytree."""
    return not results or {*map(id, results)} <= {*map(id, collect_tensors(argument, []))}


def describe(argument: object) -> Any:
    """Return a constant for an object that is neither a tensor nor a container.

    The `repr` of the object is never used: it may be long, differ from run to run, or run code.
    """
    kind = type(argument)
    if kind is Constant:
        # A placeholder for an argument, such as `FILLED`.
        return argument
    if kind in _OF_TORCH:
        return Constant(str(argument))
    if argument is Ellipsis:
        return Constant("...")
    if isinstance(argument, bool | int | float | complex):
        # An instance of a subclass: an IntEnum, a numpy float.
        base: Any = next(
            base_class for base_class in (int, float, complex) if isinstance(argument, base_class)
        )
        return Constant(f"{kind.__name__}({shown(base(argument))})")
    if isinstance(argument, str):
        return text_of(argument)[:_MOST_TEXT]
    if isinstance(argument, type) or callable(argument):
        name = attribute_of(argument, "__qualname__") or kind.__qualname__
        return Constant(f"<{name}>")
    return Constant(f"<{class_in_torch(argument) or kind.__qualname__}>")
