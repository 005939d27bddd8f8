"""Triton kernels, which torch launches past its dispatcher: their arguments, and their writes.

The writes of a kernel are found in its source: a pointer that an address is computed from is
written if the address is stored to.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any


def kernel_function(kernel: Any) -> Callable[..., object]:
    """Return the Python function of a kernel, inside of its autotuner and heuristics."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    function: Callable[..., object] = kernel
    return function


@cache
def stored_parameters(function: Callable[..., object]) -> frozenset[str]:
    """Return the names of the parameters that a kernel may write through.

    All of them if its source cannot be read. A function that the kernel calls may write through
    each of its arguments.
    """
    parameters = frozenset(inspect.signature(function).parameters)
    with suppress(OSError, TypeError, SyntaxError):
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        return parameters & _stored(tree, {name: {name} for name in parameters})
    return parameters


def _stored(tree: ast.AST, origins: dict[str, set[str]]) -> set[str]:
    """Return the parameters from which the addresses of stores come.

    Args:
        tree: The function.
        origins: For each variable, the parameters from which it is computed; variables are added.
    """

    def of(*parts: ast.AST) -> set[str]:
        return {name for part in parts for used in _names(part) for name in origins.get(used, ())}

    size = -1
    # In a loop, an address may come from a line below.
    while size != (size := sum(map(len, origins.values()))):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (name for target in targets for name in _names(target)):
                    origins[name] = origins.get(name, set()) | of(node.value)
    stored: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if not isinstance(node.func, ast.Attribute):
                stored |= of(*arguments)
            elif node.func.attr == "store" or node.func.attr.startswith("atomic_"):
                # A descriptor stores to itself, `tl.store` to its first argument.
                stored |= of(node.func.value, *arguments[:1])
    return stored


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the variables of an expression, but none from which only a loaded value comes."""
    if isinstance(node, ast.Name):
        yield node.id
    elif not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "load"):
        for child in ast.iter_child_nodes(node):
            yield from _names(child)
