"""Classes by which nodes are coloured: a module's, and the same for its gradients and updates."""

from collections.abc import Mapping

from tbscope.ir.graph import Graph, Node
from tbscope.ir.regions import OPERATIONS
from tbscope.ir.scopes import Scope, ScopePart

__all__ = ["class_labels", "mirrored_boxes"]

_Path = tuple[ScopePart, ...]


def class_labels(graph: Graph) -> dict[Node, str]:
    """Return the class of each node.

    That is the class of the module that a node stands for, or which holds the parameter; the
    operation, where it is none. What a training step does for a module is of its class, and
    a gradient is of the operation that it differentiates.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
    """
    classes = _module_classes(graph)
    served: dict[Scope, tuple[str, bool] | None] = {}
    labels: dict[Node, str] = {}
    for node in graph.nodes:
        scope, runs = node.scope, node.kind in OPERATIONS
        if runs:
            labels[node] = node.op
        elif scope is not None:
            labels[node] = scope.part.label
        if scope is None or "forward" == node.phase == scope.phase:
            continue
        if scope not in served:
            served[scope] = _served(scope, classes)
        found = served[scope]
        if found is not None and (found[1] or scope.phase == "optimizer"):
            labels[node] = found[0]
        elif runs and node.phase == "backward":
            labels[node] = str(node.attributes.get("differentiates", node.op))
    return labels


def mirrored_boxes(names: Mapping[Scope, str]) -> dict[str, str]:
    """Return by the name of each box of a backward pass that of the box whose gradients it has.

    Args:
        names: The names of boxes.
    """
    if all(scope.phase != "backward" for scope in names):
        return {}
    plain: dict[_Path, str] = {}
    inside: dict[_Path, str] = {}
    for scope, name in names.items():
        root = next(reversed([scope, *scope.ancestors()]))
        if name and root.phase != "optimizer":
            (plain if root.phase == "forward" else inside)[_path(scope)] = name
    found = {}
    for path, name in inside.items():
        ends = (path[begin:] for begin in range(1, len(path)))
        other = next((plain[end] for end in ends if end in plain), None)
        if other is not None:
            found[name] = other
    return found


def _module_classes(graph: Graph) -> dict[_Path, tuple[str, bool]]:
    """Return the class of each module that was called, and whether it is drawn as a node."""
    classes = {_path(call.scope): (call.scope.part.label, False) for call in graph.calls}
    for node in graph.nodes:
        if node.kind == "module" and node.scope is not None:
            classes[_path(node.scope)] = node.op, True
    return classes


def _path(scope: Scope) -> _Path:
    return tuple([scope.part, *(above.part for above in scope.ancestors())][::-1])


def _served(scope: Scope, classes: Mapping[_Path, tuple[str, bool]]) -> tuple[str, bool] | None:
    """Find the innermost module that a scope of a training step mirrors."""
    path = _path(scope)
    for end in range(len(path), 1, -1):
        for begin in range(1, end):
            found = classes.get(path[begin:end])
            if found is not None:
                return found
    return None
