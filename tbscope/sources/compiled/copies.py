"""Copies of captured graphs: the nodes are new, with modules told by their qualified names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch

__all__ = ["BACKWARD", "BOX", "KERNEL", "Given", "copied", "is_forward"]

KERNEL = "tbscope_kernels"
"""The metadata of a node that name the kernels which compute it."""
BOX = "tbscope_box "
"""How the first entry of a stack of modules begins that names a box around the modules."""
BACKWARD = "tbscope_backward"
"""The metadata of a node that stands in the backward pass."""


@dataclass(slots=True)
class Given:
    """What a captured graph takes.

    Attributes:
        kind: What it is: an "input", a "parameter", a "buffer", a "constant", or a "number",
            which is a size or another value that is no tensor.
        name: A qualified name, or a path.
        type: What is known of it.
        tensor: What it is in the run that was captured, for a constant, and for a parameter or a
            buffer of a module that the model does not hold; None for anything else.
    """

    kind: str
    name: str
    type: Any
    tensor: torch.Tensor | None = None


def copied(
    module: torch.fx.GraphModule,
    name_of: Callable[[str], str],
    around: Mapping[str, tuple[str, type]],
) -> torch.fx.GraphModule:
    """Return a copy of a graph module; tensors and plain modules in it are shared.

    Args:
        module: What is copied; it stays as it is.
        name_of: Returns the qualified name of a module, from the expression that leads to it.
        around: The call in which all of it runs, as nodes tell of calls.
    """
    graph = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    result = graph.graph_copy(module.graph, known)
    if result is not None:
        graph.output(result)
    held: dict[str, Any] = {}
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            thing = _found(module, str(node.target))
            inner = isinstance(thing, torch.fx.GraphModule)
            held[str(node.target)] = copied(thing, name_of, around) if inner else thing
        meta = node.meta
        # What the compiler keeps of the run, among it the tensors.
        meta.pop("grapharg", None)
        if meta.get("autograd_backward") or meta.get("partitioner_tag") == "is_backward":
            meta[BACKWARD] = True
        told = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
        read = node.all_input_nodes if node.op == "call_function" else ()
        if "stack_trace" not in meta and any(BACKWARD in each.meta for each in read):
            # A pass of the compiler has made it.
            meta[BACKWARD] = True
        if told is None and BACKWARD in meta and read and not is_forward(node):
            meta["nn_module_stack"] = _common(read)
        else:
            meta["nn_module_stack"] = {**around, **_named(told or {}, name_of)}
    return torch.fx.GraphModule(held, graph)


def is_forward(node: torch.fx.Node) -> bool:
    """Tell whether a node is of the forward pass, which the backward pass may compute again."""
    return node.meta.get("partitioner_tag") == "is_forward"


def _common(nodes: Sequence[torch.fx.Node]) -> dict[str, Any]:
    """Return the calls around all of some nodes: there stands the sum of their gradients.

    That is made for no operation of a module, as is what a pass of the compiler makes.
    """
    stacks = [node.meta["nn_module_stack"].items() for node in nodes]
    levels = zip(*stacks, strict=False)
    return dict([level[0] for level in takewhile(lambda level: len({*level}) == 1, levels)])


def _found(module: Any, path: str) -> Any:
    for step in path.split("."):
        module = getattr(module, step, None)
    return module


def _named(stack: Mapping[str, Any], name_of: Callable[[str], str]) -> dict[str, Any]:
    """Return the calls around a node with the names of their modules."""
    named: dict[str, Any] = {}
    for key, entry in stack.items():
        if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str):
            text = entry[0].partition("@")[0]
            # A module with two names has one key, also where it is called by each of them.
            named[f"{key}:{text}"] = (name_of(text), entry[1])
    return named
