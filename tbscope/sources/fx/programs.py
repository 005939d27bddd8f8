"""Graphs of programs of torch.export, and of graph modules of torch.fx and of other tools.

A program has a flat list of tensors, and the spec of the pytree in which they were. The spec is
filled with the tensors, and the pytree is walked as the eager tracer walks a real one.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Argument, Graph
from tbscope.messages import error_text, shown
from tbscope.sources.fx.aliasing import (
    Content,
    Slot,
    slots_of,
    tree_replace,
    types_of_metadata,
)
from tbscope.sources.fx.archive import load_program
from tbscope.sources.fx.detect import is_exported, is_graph_module, is_unflattened
from tbscope.sources.fx.reader import Reader
from tbscope.sources.fx.scopes import ProgramScopes, State, StateKind, state_of
from tbscope.sources.fx.tensor_types import UNKNOWN
from tbscope.sources.fx.walk import Walk, class_in, classes_in
from tbscope.sources.torch.calling.bind import DummyInputs, given_inputs
from tbscope.sources.torch.calling.pytree import result_leaves, tensor_leaves
from tbscope.sources.torch.compat.tensors import filled, flat, is_guard, tree_specs_of
from tbscope.sources.torch.recorded_names import container_class
from tbscope.utils.gc_pause import collecting_rarely
from tbscope.utils.validation import Dtypes, InputSize, attribute_of, check_truth

_STATE: dict[str, StateKind] = {"PARAMETER": "parameter", "BUFFER": "buffer"}


def from_export(exported_program_or_path: object, *, trusted: bool = False) -> Graph:
    """Return the graph of a program of torch.export; nothing of the program runs.

    Scopes and calls come from the module stack of each operation. Parameters, buffers and constants
    have their qualified names, inputs and outputs their paths. A symbolic size has no number on the
    edge; the attribute `symbolic_shape` contains its formula.

    >>> import torch, tbscope
    >>> program = torch.export.export(torch.nn.Linear(3, 5), (torch.rand(1, 3),))
    >>> tbscope.from_export(program)
    <Graph Linear: 4 nodes, 1 calls>

    Args:
        exported_program_or_path: An `ExportedProgram`, or the path of a `.pt2` file.
        trusted: Whether a file may run code of its author: objects that torch unpickles, and
            compiled parts. Without it, a file with such content is refused.
    Returns:
        The graph.
    Raises:
        ArgumentError: The argument is neither, or the file is damaged, or it would run code.
    """
    check_truth("trusted", trusted)
    program, path = exported_program_or_path, None
    if isinstance(program, str | os.PathLike):
        program, path = load_program(program, trusted=trusted), program
    if not is_exported(program):
        raise ArgumentError(
            f"from_export was given {shown(program)}",
            why="it takes an ExportedProgram, or the path of a .pt2 file",
            fix="tbscope.from_export(torch.export.export(model, (x,)))",
        )
    try:
        with collecting_rarely():
            return _graph_of_program(program)
    except Exception as error:
        if path is None:
            raise
        # A file that torch loads may still be inconsistent.
        raise ArgumentError(
            f"no graph can be made of the program in {shown(path)}",
            why=error_text(error),
            fix="write it again with torch.export.save(program, path)",
        ) from error


def _graph_of_program(program: torch.export.ExportedProgram) -> Graph:
    """Return the graph of a program."""
    module: torch.fx.GraphModule = program.graph_module
    signature = program.graph_signature
    # torch appends `@1` to the name of a module that is called again.
    names = [entry.fqn.partition("@")[0] for entry in program.module_call_graph]
    classes = classes_in(module)
    root_class = classes.get("")
    places = ProgramScopes(
        root_class or "ExportedProgram",
        lambda name: classes.get(name) or container_class(names, name),
    )
    if root_class is not None:
        places.open_root(root_class)
    kinds: dict[str, StateKind] = {
        spec.target: _STATE[spec.kind.name]
        for spec in signature.input_specs
        if spec.kind.name in _STATE and spec.target is not None
    }
    tensors = {**program.state_dict, **program.constants}
    reader = Reader(State(places, kinds, tensors))
    _add_inputs(reader, program)
    results = Walk(reader).read(module)
    leaves = _written_back(reader, signature.output_specs, results)
    return reader.finish(*_results_of(program.call_spec.out_spec, leaves), names)


def _add_inputs(reader: Reader, program: torch.export.ExportedProgram) -> None:
    """Set the result of each placeholder of a program, and add the inputs of the model."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    inputs: dict[str, Content] = {}
    for node in program.graph_module.graph.find_nodes(op="placeholder"):
        spec: Any = specs[node.name]
        kind = spec.kind.name
        types = reader.type_of(node)
        result: Content = None
        if kind in _STATE or kind == "CONSTANT_TENSOR":
            result = reader.state.slot(spec.target, types)
        elif kind == "USER_INPUT":
            constant = getattr(spec.arg, "value", None)
            result = slots_of(types) if constant is None else constant
            inputs[node.name] = result
        reader.results[node] = result
    calls = program.module_call_graph
    paths, arguments = _input_paths(
        program.call_spec.in_spec,
        getattr(calls[0].signature if calls else None, "forward_arg_names", None),
        list(inputs.values()),
        list(inputs),
    )
    reader.take(zip(paths, inputs.values(), strict=True), arguments)


def _written_back(reader: Reader, specs: Iterable[Any], results: list[Content]) -> list[Content]:
    """Append the in-place writes at the end of a program; return its results as a list."""
    leaves: list[Content] = []
    by_name = {node.name: result for node, result in reader.results.items()}
    for spec, result in zip(specs, results, strict=False):
        kind = spec.kind.name
        if kind in ("USER_OUTPUT", "LOSS_OUTPUT"):
            leaves.append(result)
            continue
        target = None
        if kind in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
            target = reader.state.slot(spec.target)
        elif kind == "USER_INPUT_MUTATION":
            target = by_name.get(spec.target)
        if type(target) is Slot and type(result) is Slot and target is not result:
            # torch.export turns an in-place write into an output: the new content of state or of an
            # input.
            old, new = target.read(), result.read()
            node = reader.builder.append_op(
                "copy_",
                new.producer.scope,
                [old, new],
                [Argument(None, old), Argument(None, new)],
                [],
                new.producer.source,
                ["aten::copy_"],
            )
            node.flops = 0
            reader.add_outputs(node, target.type, [target, result], [target], {0: target})
    return leaves


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
            f"from_fx was given {shown(graph_module)}",
            why="it takes a torch.fx.GraphModule",
            fix="tbscope.from_fx(torch.fx.symbolic_trace(model), x)",
        )
    with collecting_rarely():
        made = DummyInputs(input_size, dtypes, fake=True)
        return _graph_of_module(
            graph_module, given_inputs(graph_module, input_to_model, kwargs, made)
        )


def _graph_of_module(
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
    args, kwargs = inputs or ((), {})
    given = {node: kwargs[node.target] for node in nodes if node.target in kwargs}
    given.update(zip(nodes, args if plan is None or inputs is None else flat(inputs), strict=False))
    for node in nodes:
        if node in given:
            types = types_of_metadata(given[node])
        elif (types := reader.type_of(node)) is None:
            types = node.args[0] if node.args else UNKNOWN
        reader.results[node] = slots_of(types)
    node_names = [str(node.target).lstrip("*") for node in nodes]
    leaves = [reader.results[node] for node in nodes]
    paths, arguments = _input_paths(plan, names, leaves, node_names)
    reader.take(zip(paths, leaves, strict=True), arguments)
    places.call_of[places.root].training = module.training
    walk = Walk(reader, runs=True)
    if out_plan is not None:
        return reader.finish(*_results_of(out_plan, walk.read(module)), parts)
    result = walk.result(module)
    return reader.finish(result_leaves(result, Slot), result, parts)


def _input_paths(
    plan: object, names: Sequence[str] | None, leaves: Sequence[object], fallback: list[str]
) -> tuple[list[str], list[tuple[str, Content]]]:
    """Return the path of each input of a program, and its arguments with their names.

    Args:
        plan: The pytree spec of the positional and keyword arguments, or None if the program has
            none.
        names: The names of the parameters of forward, as far as the program records them.
        leaves: For each input a slot for a tensor, else a constant.
        fallback: A name for each input that has no path in the pytree.
    """
    tree = _filled(plan, leaves)
    if tree is None or len(tree) != 2 or not isinstance(tree[1], dict):
        return fallback, list(zip(fallback, leaves, strict=True))
    args, kwargs = tree
    order = list(names or ())
    named = [
        (order[index] if index < len(order) else f"args.{index}", argument)
        for index, argument in enumerate(args)
    ]
    named += sorted(
        kwargs.items(), key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order)
    )
    paths: dict[int, str] = {}
    for name, argument in named:
        for path, slot in tensor_leaves(argument, name, public=True, kind=Slot):
            paths.setdefault(id(slot), path)
    flat_paths = [
        paths.get(id(leaf), default) for leaf, default in zip(leaves, fallback, strict=True)
    ]
    return flat_paths, named


def _results_of(plan: object, leaves: Sequence[object]) -> tuple[list[tuple[str, Slot]], Content]:
    """Return each tensor in the result of a program with its path, and the result.

    Args:
        plan: The pytree spec of the result, or None if the program has none.
        leaves: The outputs of the program, flat.
    Returns:
        The tensors with their paths (`logits`, `out.0`), and the result as a pytree: flat if its
        containers cannot be rebuilt.
    """
    result: Content = _filled(plan, leaves)
    if result is None:
        result = leaves[0] if len(leaves) == 1 else tuple(leaves)
    named_slots = result_leaves(result, Slot)
    listed = {id(slot) for _, slot in named_slots}
    # A container of the user's may hide tensors from the walk.
    named_slots += [
        (f"out.{index}", leaf)
        for index, leaf in enumerate(leaves)
        if type(leaf) is Slot and id(leaf) not in listed
    ]
    return named_slots, result


def _mark(leaf: object) -> Any:
    """Return a meta tensor for a slot; return a constant unchanged."""
    if type(leaf) is not Slot:
        return leaf
    shape = leaf.type.shape or ()
    with torch.no_grad():
        return torch.empty([1 if size is None else size for size in shape], device="meta")


def _filled(plan: object, leaves: Sequence[object]) -> Content:
    """Return the pytree of a spec with these leaves; None without a spec that can be rebuilt.

    Code of the user, which rebuilds the user's containers, gets meta tensors in place of slots.
    """
    marks = [_mark(leaf) for leaf in leaves]
    try:
        tree = filled(plan, marks)
    except Exception:  # noqa: BLE001 (code of the user)
        return None
    leaf_of = dict(zip(map(id, marks), leaves, strict=True))
    return tree_replace(tree, torch.Tensor, lambda tensor: leaf_of.get(id(tensor), tensor))
