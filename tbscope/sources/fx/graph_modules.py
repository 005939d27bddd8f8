"""Graphs of graph modules, which torch.fx traced by itself or for other tools."""

from collections.abc import Mapping
from typing import Any

import torch

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph
from tbscope.sources.fx.aliasing import UNKNOWN, Content, slots_of, types_of_metadata
from tbscope.sources.fx.detect import is_graph_module, is_unflattened
from tbscope.sources.fx.io_names import input_paths, result_paths, results_of
from tbscope.sources.fx.reader import Reader
from tbscope.sources.fx.scopes import ProgramScopes
from tbscope.sources.fx.state import State, state_of
from tbscope.sources.fx.walk import Walk, class_in, classes_in
from tbscope.sources.torch.calling.bind import DummyInputs, given_inputs
from tbscope.sources.torch.calling.signatures import describe_type
from tbscope.sources.torch.compat.tensors import flat, is_guard, tree_specs_of
from tbscope.utils.gc_pause import collecting_rarely
from tbscope.utils.validation import Dtypes, InputSize, attribute_of

__all__ = ["from_fx"]


def from_fx(
    graph_module: torch.fx.GraphModule,
    input_to_model: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_size: InputSize | None = None,
    dtypes: Dtypes | None = None,
) -> Graph:
    """Return the graph of a graph module; no content of a tensor is computed.

    Scopes come from the module stacks of nodes, and from the modules that nodes call. Shapes come
    from the metadata of nodes (`meta["val"]`, `tensor_meta`). Shapes without metadata follow from
    the shapes of the inputs, if there are inputs: operations run on fake tensors.

    >>> import torch, tbscope
    >>> traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(3, 5)))
    >>> tbscope.from_fx(traced, torch.rand(1, 3)).outputs[0].value.shape
    (1, 5)

    Args:
        graph_module: The result of `torch.fx.symbolic_trace`, `make_fx`, `ExportedProgram.module()`
            or any other tool of torch.fx.
        input_to_model: The inputs, as for `trace`; so are `kwargs`, `input_size` and `dtypes`.
            Tensors on "meta" suffice. No inputs are needed if nodes have shapes, or shapes may stay
            unknown.
        kwargs: Further keyword arguments.
        input_size: The sizes of generated inputs.
        dtypes: Their element types.
    Returns:
        The graph.
    Raises:
        ArgumentError: The argument is no graph module.
        InputError: The inputs do not fit the parameters of the graph module.
    """
    if not is_graph_module(graph_module):
        raise ArgumentError(
            f"from_fx was given {describe_type(graph_module)}",
            why="it takes a torch.fx.GraphModule",
            fix="tbscope.from_fx(torch.fx.symbolic_trace(model), x)",
        )
    with collecting_rarely():
        made = DummyInputs(input_size, dtypes, fake=True)
        return _graph_of(graph_module, given_inputs(graph_module, input_to_model, kwargs, made))


def _graph_of(
    module: torch.fx.GraphModule, inputs: tuple[tuple[Any, ...], dict[str, Any]] | None
) -> Graph:
    """Return the graph of a graph module."""
    modules = dict(module.named_modules(remove_duplicate=False))
    parts = {
        name: part
        for name, part in modules.items()
        if not isinstance(part, torch.fx.GraphModule) and not is_guard(part)
    }
    classes = classes_in(module)

    label = classes.get("") or type(module).__name__.strip("<>")
    if is_unflattened(module):
        label = attribute_of(module, "type_name")() or label
    places = ProgramScopes(label, lambda name: classes.get(name) or class_in(parts, name))
    places.open_root(label)
    reader = Reader(State(places, *state_of(modules)))
    plan, out_plan, names = tree_specs_of(module)
    nodes = list(module.graph.find_nodes(op="placeholder"))
    for node, value in zip(nodes, _values_of(nodes, plan, inputs), strict=True):
        if value is not _NOTHING:
            types = types_of_metadata(value)
        elif (types := reader.type_of(node)) is None:
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


def _values_of(
    nodes: list[torch.fx.Node],
    plan: object,
    inputs: tuple[tuple[Any, ...], dict[str, Any]] | None,
) -> list[Content]:
    """Return the input of each placeholder, or `_NOTHING` for a placeholder without input."""
    args, kwargs = inputs or ((), {})
    values: list[Content] = [*args]
    if inputs is not None and plan is not None:
        values = flat(inputs)
    further = nodes[len(values) :]
    return values + [kwargs.get(str(node.target), _NOTHING) for node in further]


_NOTHING: object = object()
