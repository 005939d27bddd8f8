"""Scopes of the user in a program that torch captures (torch.export, torch.compile, torch.fx).

Such a program records the calls of modules, and nothing of scopes. So when a scope closes, each
node that the program has got since the scope opened gets a line at the head of its stack trace.
Unlike other metadata, stack traces reach decomposed programs, `.pt2` files and ONNX files.
"""

from contextlib import suppress
from weakref import WeakKeyDictionary

from torch.fx import Graph, Node

from tbscope.sources.torch.compat.compiler import captured_program, runs_in_compiler
from tbscope.sources.torch.recorded_names import scope_mark

# Where a torch has another form, the user's code runs without its scopes.
_OTHER_FORMS = (AttributeError, ImportError, LookupError, TypeError)

# The open scopes of each program: the name, the last node before; the number of nodes and open
# scopes before, and that of module calls.
_OPEN: WeakKeyDictionary[Graph, list[tuple[str, Node | None, int, int]]] = WeakKeyDictionary()


@runs_in_compiler
def open_captured(name: str) -> None:
    """Record that a scope opens in the program that is captured."""
    with suppress(*_OTHER_FORMS):
        graph, calls = captured_program()
        opened = _OPEN.setdefault(graph, [])
        last = next(iter(reversed(graph.nodes)), None)
        opened.append((name, last, len(graph.nodes) + len(opened), len(calls)))


@runs_in_compiler
def close_captured(name: str | None) -> None:
    """Mark the nodes of the innermost scope of a name, or of any name, and of scopes open in it."""
    with suppress(*_OTHER_FORMS):
        graph, _ = captured_program()
        closed = None
        while closed is None:
            closed, last, at, calls = _OPEN[graph].pop()
            for node in reversed(graph.nodes):
                if last is not None and not last < node:
                    break
                inside = len(node.meta.get("nn_module_stack") or ()) - calls
                mark = scope_mark(closed, at, max(inside, 0))
                node.meta["stack_trace"] = f"{mark}\n{node.meta.get('stack_trace') or ''}"
            closed = closed if name in (None, closed) else None
