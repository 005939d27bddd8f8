"""What a value of TorchScript holds while its graph is read: beside tensors and constants, others.

A tensor is a `Slot`, a constant is itself, a list or a dict holds more of these; an object is a
`Part`, a number of which only its making is known a `Number`.
"""

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tbscope.ir.graph import Constant
from tbscope.sources.fx.aliasing import Held, Slot, slots_in

__all__ = [
    "FLAT",
    "UNNAMED",
    "Number",
    "Part",
    "Rest",
    "class_name",
    "closed",
    "forget",
    "has_slot",
    "is_known",
    "is_open",
    "lowered",
    "mapped",
    "origins",
]

_MANGLED = re.compile(r"(^|\.)___torch_mangle_[0-9]+(?=\.)")
_MOST_TEXT = 60
_MOST_ORIGINS = 8


@dataclass(slots=True, eq=False)
class Part:
    """A module, or another object with attributes.

    Attributes:
        name: Its qualified name in the whole; None for an object that is no module.
        kind: The name of its class, as TorchScript has it.
        handle: What TorchScript holds of it; None for one that the code makes.
        attributes: What the code has set, or has read before.
    """

    name: str | None
    kind: str
    handle: Any = None
    attributes: dict[str, Held] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Number:
    """A number, a text, or another thing without a tensor, that is known when the code runs.

    Attributes:
        text: How it is made (`x.size(0)`); cut where it is long.
        slots: The tensors that it was made of.
    """

    text: str
    slots: tuple[Slot, ...] = ()

    def __post_init__(self) -> None:
        self.text = self.text if len(self.text) <= _MOST_TEXT else "..."
        self.slots = self.slots[:_MOST_ORIGINS]

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True, eq=False)
class Rest:
    """Stands in a list or a dict, as its last entry, for as many more as nobody knows, or for none.

    Attributes:
        slots: The tensors on which they depend.
    """

    slots: tuple[Slot, ...]


@functools.lru_cache(maxsize=4096)
def class_name(kind: str) -> str:
    """Return the full name of a class of Python, from that which TorchScript gives it.

    >>> class_name("__torch__.torch.nn.modules.linear.___torch_mangle_9.Linear")
    'torch.nn.modules.linear.Linear'
    """
    return _MANGLED.sub("", kind.removeprefix("__torch__.")).removeprefix(".") or "Module"


def is_known(held: Held) -> bool:
    """Tell whether something is a constant, or a nest of constants."""
    kind = type(held)
    if kind in FLAT:
        return kind is not Slot
    if isinstance(held, (list, tuple)):
        return all(map(is_known, held))
    if isinstance(held, dict):
        return all(map(is_known, held.values()))
    return kind not in (Number, Part, Constant, Rest)


class _Unnamed:
    def __str__(self) -> str:
        return "..."


UNNAMED = _Unnamed()
"""The key in a dict of what stands under a key that nobody knows."""


def is_open(held: Held) -> bool:
    """Tell whether nobody knows how many entries a list or a dict has, nor where they stand."""
    if type(held) is dict:
        return UNNAMED in held
    return type(held) is list and bool(held) and type(held[-1]) is Rest


def closed(container: Any) -> Any:
    """Return the entries of a list or a dict that are known; itself, where all of them are."""
    if not is_open(container):
        return container
    if type(container) is dict:
        return {key: entry for key, entry in container.items() if key is not UNNAMED}
    return container[:-1]


def forget(container: Any, *others: Held) -> None:
    """Have a list or a dict hold as many entries as nobody knows, the tensors in it among them.

    Args:
        container: The list or dict.
        others: What may stand in it, too.
    """
    rest = Rest(origins([container, *others]))
    slots = dict.fromkeys(slots_in([container, *others]))
    if type(container) is dict:
        named = {key: entry for key, entry in closed(container).items() if has_slot(entry)}
        for slot in slots_in(named):
            del slots[slot]
        container.clear()
        container.update(named)
        container[UNNAMED] = [*slots, rest]
    else:
        container[:] = [*slots, rest]


def has_slot(held: Held) -> bool:
    """Tell whether a tensor is in a nest."""
    return next(slots_in(held), None) is not None


FLAT = frozenset({Slot, int, float, bool, str, type(None)})
"""The classes of what holds nothing else."""


def origins(held: Held) -> tuple[Slot, ...]:
    """Return the tensors of which a nest is made, each once."""
    return tuple(dict.fromkeys(_origins(held)))


def _origins(held: Held) -> Iterator[Slot]:
    if type(held) is Number or type(held) is Rest:
        yield from held.slots
    elif isinstance(held, list | tuple | dict):
        for entry in held.values() if isinstance(held, dict) else held:
            yield from _origins(entry)
    else:
        yield from slots_in(held)


def lowered(held: Held) -> Held:
    """Return a nest as a reader of programs takes it: with texts for numbers and objects."""
    kind = type(held)
    if kind in FLAT:
        return held
    if kind is Number:
        return Constant(held.text)
    if kind is Rest:
        return Constant("...")
    if kind is Part:
        return Constant(f"<{class_name(held.kind).rpartition('.')[2]}>")
    if kind is list or kind is tuple:
        return kind([lowered(entry) for entry in held])
    if kind is dict:
        return {str(key): lowered(entry) for key, entry in held.items()}
    return held


def mapped(held: Held, change: Callable[[Held], Held]) -> Held:
    """Return a nest with something else for each entry that is no list, no tuple and no dict."""
    kind = type(held)
    if kind is list or kind is tuple:
        return kind([mapped(each, change) for each in held])
    if kind is dict:
        return {key: mapped(each, change) for key, each in held.items()}
    return change(held)
