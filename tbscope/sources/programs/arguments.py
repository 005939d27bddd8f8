"""What a node of a program is given: first as it is held, then as an argument of ours."""

from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from typing import Any

import torch

from tbscope.ir.graph import Constant
from tbscope.sources.programs.slots import Held, Slot, slots_in
from tbscope.sources.programs.types import is_symbol, symbol_text
from tbscope.sources.torch.literals import Literals
from tbscope.sources.torch.nests import children, fields_of, key_text

__all__ = ["plain", "valued"]


# A program holds its tensors by name; one that a container of the user's makes has none.
_constant = Literals(lambda _: Constant("<Tensor>")).nest
_PLAIN = frozenset({int, float, bool, str, complex, type(None)})
# What no literal of an argument is made shorter of.
_WHOLE = frozenset({float, bool, complex, type(None), Constant})


def plain(given: Any, of_node: Callable[[Any], Held]) -> Held:
    """Return the arguments of a program's node in plain containers.

    Args:
        given: What it is given: its nodes, constants, and containers of torch.fx.
        of_node: Returns what another node gave.
    """
    kind = type(given)
    if kind in _PLAIN:
        return given
    if kind is torch.fx.Node:
        return of_node(given)
    if isinstance(given, tuple):
        return tuple([plain(entry, of_node) for entry in given])
    if isinstance(given, list):
        return [plain(entry, of_node) for entry in given]
    if isinstance(given, dict):
        return {key: plain(entry, of_node) for key, entry in given.items()}
    if kind is slice:
        return slice(*[plain(end, of_node) for end in (given.start, given.stop, given.step)])
    return given


def valued(given: Any, read: list[Slot], inside: frozenset[int] = frozenset()) -> Any:
    """Return arguments with values for slots; add the slots to a list.

    Args:
        given: The arguments.
        read: Where the slots are added, in order.
        inside: The containers around them, by `id`.
    """
    kind = type(given)
    if kind is Slot:
        read.append(given)
        return given.read()
    if kind in _WHOLE:
        return given
    if id(given) in inside:
        # A container that holds itself.
        return Constant("...")
    inside |= {id(given)}
    if kind is list or kind is tuple:
        return kind([valued(entry, read, inside) for entry in given])
    if is_symbol(given):
        return symbol_text(given)
    if kind is not dict and next(slots_in(given), None) is None:
        return _constant(given)
    fields = fields_of(given)
    entries = children(given) if fields is None else fields
    by_key = fields is not None or isinstance(given, Mapping) or hasattr(given, "_fields")
    if not by_key and isinstance(given, slice | Sequence | Set | ValuesView):
        listed = [valued(entry, read, inside) for _, entry in entries]
        return tuple(listed) if isinstance(given, tuple) else listed
    return {
        key_text(key, position): valued(entry, read, inside)
        for position, (key, entry) in enumerate(entries)
        if by_key or next(slots_in(entry), None) is not None
    }
