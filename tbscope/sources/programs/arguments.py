"""What a node of a program is given: first as it is held, then as an argument of ours."""

from collections.abc import Callable
from typing import Any

import torch

from tbscope.ir.graph import Constant, Value
from tbscope.sources.programs.slots import Held, Slot
from tbscope.sources.programs.types import is_symbol, symbol_text
from tbscope.sources.torch.literals import Literals

__all__ = ["plain", "valued"]


def _no_tensor(_: torch.Tensor) -> Value:
    raise AssertionError("a program holds tensors by name")


_constant = Literals(_no_tensor).nest
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


def valued(given: Any, read: list[Slot]) -> Any:
    """Return arguments with values for slots; add the slots to a list."""
    kind = type(given)
    if kind is Slot:
        read.append(given)
        return given.read()
    if kind in _WHOLE:
        return given
    if kind is list or kind is tuple:
        return kind([valued(entry, read) for entry in given])
    if kind is dict:
        return {str(key): valued(entry, read) for key, entry in given.items()}
    if is_symbol(given):
        return symbol_text(given)
    if kind is slice and any(type(end) is Slot for end in (given.start, given.stop, given.step)):
        return [valued(end, read) for end in (given.start, given.stop, given.step)]
    return _constant(given)
