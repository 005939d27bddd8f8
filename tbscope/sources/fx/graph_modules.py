"""Graphs of graph modules, which torch.fx traced by itself or for other tools."""

from collections.abc import Sequence

import torch

from tbscope.errors import ArgumentError, InputError
from tbscope.ir.graph import Graph
from tbscope.sources.fx.aliasing import (
    UNKNOWN,
    Content,
    slots_of,
    types_of_metadata,
)
from tbscope.sources.fx.detect import is_graph_module
from tbscope.sources.fx.io_names import input_paths, result_paths, results_of
from tbscope.sources.fx.reader import Reader
from tbscope.sources.fx.scopes import ProgramScopes
from tbscope.sources.fx.state import state_of
from tbscope.sources.fx.walk import Walk, class_in, classes_in
from tbscope.sources.torch.calling.signatures import describe_type
from tbscope.sources.torch.compat.tensors import flat, is_guard, tree_specs_of
from tbscope.utils.gc_pause import collecting_rarely

__all__ = ["from_fx"]


def from_fx(graph_module: torch.fx.GraphModule, *inputs: object) -> Graph:
    """Return the graph of a graph module; no content of a tensor is computed.

    Scopes come from the module stacks of nodes, and from the modules that nodes call. Shapes come
    from the metadata of nodes (`meta["val"]`, `tensor_meta`). Shapes without metadata follow from
    the shapes of the inputs, if there are inputs: operations run on fake tensors.

    Args:
        graph_module: The result of `torch.fx.symbolic_trace`, `make_fx`, `ExportedProgram.module()`
            or any other tool of torch.fx.
        inputs: The positional arguments; tensors on "meta" suffice. No inputs are needed if nodes
            have shapes, or shapes may stay unknown.
    Raises:
        ArgumentError: The argument is no graph module.
        InputError: The inputs are more, or fewer, than the graph module takes.
    """
    if not is_graph_module(graph_module):
        raise ArgumentError(
            f"from_fx was given {describe_type(graph_module)}",
            why="it takes a torch.fx.GraphModule",
            fix="tbscope.from_fx(torch.fx.symbolic_trace(model), x)",
        )
    with collecting_rarely():
        return _graph_of(graph_module, inputs)


def _graph_of(module: torch.fx.GraphModule, inputs: Sequence[object]) -> Graph:
    """Return the graph of a graph module."""
    modules = dict(module.named_modules(remove_duplicate=False))
    parts = {
        name: part
        for name, part in modules.items()
        if not isinstance(part, torch.fx.GraphModule) and not is_guard(part)
    }
    classes = classes_in(module)

    label = classes.get("") or type(module).__name__.strip("<>")
    places = ProgramScopes(label, lambda name: classes.get(name) or class_in(parts, name))
    places.open_root(label)
    reader = Reader(places, *state_of(modules))
    plan, out_plan, names = tree_specs_of(module)
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, value in zip(nodes, _values_of(nodes, plan, inputs), strict=True):
        types = types_of_metadata(value) if value is not _NOTHING else reader.type_of(node)
        if types is None and value is _NOTHING:
            types = node.args[0] if node.args else UNKNOWN
        reader.results[node] = slots_of(types)
    node_names = [str(node.target).lstrip("*") for node in nodes]
    leaves = [reader.results[node] for node in nodes]
    paths, arguments = input_paths(plan, names, leaves, node_names)
    reader.take(zip(paths, leaves, strict=True), arguments)
    places.call_of[places.root].training = module.training
    walk = Walk(reader, runs=True)
    if out_plan is not None:
        return reader.finish(*results_of(out_plan, walk.read(module)), parts)
    result = walk.result(module)
    return reader.finish(result_paths(result), result, parts)


def _values_of(nodes: list[torch.fx.Node], plan: object, inputs: Sequence[object]) -> list[Content]:
    """Return the input of each placeholder, or `_NOTHING` for a placeholder without input."""
    if not inputs:
        return [_NOTHING] * len(nodes)
    values = flat((tuple(inputs), {})) if plan is not None else list(inputs)
    required = sum(1 for node in nodes if not node.args)
    if not required <= len(values) <= len(nodes):
        raise InputError(
            f"{len(values)} inputs are given for the {len(nodes)} of the graph module",
            why=f"it takes {', '.join(str(node.target) for node in nodes) or 'none'}",
            fix="tbscope.from_fx(graph_module, *inputs), or no inputs at all",
        )
    return values + [_NOTHING] * (len(nodes) - len(values))


_NOTHING: object = object()
