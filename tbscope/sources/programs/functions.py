"""Nodes that call functions of Python and of torch: taking entries, arithmetic on sizes, others."""

import operator
from typing import Any

import torch

from tbscope.ir.graph import Constant
from tbscope.sources.programs.reader import Reader
from tbscope.sources.programs.slots import Held, slots_in

__all__ = ["call_python"]


def call_python(reader: Reader, node: torch.fx.Node, *, runs: bool = False) -> Held:
    """Read a node that calls a function which is no operator of torch; return what it gives.

    Args:
        reader: Who reads the program.
        node: The node.
        runs: Whether the function may be called on stand-ins. One that a file names may not:
            it may be any function of Python's or torch's.
    """
    target: Any = node.target
    args, kwargs = reader.of(node.args), reader.of(node.kwargs)
    if target is operator.getitem and type(args[0]) in (list, tuple, dict):
        return _entry(args[0], args[1], node)
    told = reader.type_of(node)
    if next(slots_in(args), None) is None and next(slots_in(kwargs), None) is None:
        # Numbers made of sizes.
        return Constant(node.name) if told is None else told
    return reader.call_function(node, target, args, kwargs, told, runs=runs)


def _entry(nest: Any, key: Any, node: torch.fx.Node) -> Held:
    try:
        return nest[key]
    except (LookupError, TypeError):
        # A key that is known only when it runs.
        return next(iter(slots_in(nest)), Constant(node.name))
