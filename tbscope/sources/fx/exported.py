"""Graphs of programs of torch.export."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Argument, Graph
from tbscope.messages import error_text, shown
from tbscope.sources.fx.aliasing import Content, Slot, slots_of
from tbscope.sources.fx.archive import load_program
from tbscope.sources.fx.detect import is_exported
from tbscope.sources.fx.io_names import input_paths, results_of
from tbscope.sources.fx.reader import Reader
from tbscope.sources.fx.scopes import ProgramScopes
from tbscope.sources.fx.state import State, StateKind
from tbscope.sources.fx.walk import Walk, classes_in
from tbscope.sources.torch.calling.signatures import describe_type
from tbscope.sources.torch.module_names import container_class
from tbscope.utils.gc_pause import collecting_rarely
from tbscope.utils.validation import check_truth

__all__ = ["from_export"]

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
    program = exported_program_or_path
    if isinstance(program, str | os.PathLike):
        return _of_file(program, trusted=trusted)
    if not is_exported(program):
        raise ArgumentError(
            f"from_export was given {describe_type(program)}",
            why="it takes an ExportedProgram, or the path of a .pt2 file",
            fix="tbscope.from_export(torch.export.export(model, (x,)))",
        )
    with collecting_rarely():
        return _graph_of(program)


def _of_file(path: object, *, trusted: bool) -> Graph:
    program = load_program(path, trusted=trusted)
    try:
        with collecting_rarely():
            return _graph_of(program)
    except Exception as error:  # A file that torch loads may still be inconsistent.
        raise ArgumentError(
            f"no graph can be made of the program in {shown(path)}",
            why=error_text(error),
            fix="write it again with torch.export.save(program, path)",
        ) from error


def _graph_of(program: torch.export.ExportedProgram) -> Graph:
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
    reader = Reader(State(places, _in_order(kinds, names), tensors))
    _add_inputs(reader, program)
    results = Walk(reader).read(module)
    leaves = _written_back(reader, signature.output_specs, results)
    return reader.finish(*results_of(program.call_spec.out_spec, leaves), names)


def _add_inputs(reader: Reader, program: torch.export.ExportedProgram) -> None:
    """Set the result of each placeholder of a program, and add the inputs of the model."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    inputs: dict[str, Content] = {}
    for node in program.graph_module.graph.find_nodes(op="placeholder"):
        spec: Any = specs.get(node.name)
        kind = "USER_INPUT" if spec is None else spec.kind.name
        types = reader.type_of(node)
        result: Content = None
        if kind in _STATE or kind == "CONSTANT_TENSOR":
            result = reader.state.slot(spec.target, types)
        elif kind == "USER_INPUT":
            constant = getattr(getattr(spec, "arg", None), "value", None)
            result = slots_of(types) if constant is None else constant
            inputs[node.name] = result
        reader.results[node] = result
    calls = program.module_call_graph
    paths, arguments = input_paths(
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


def _in_order(kinds: Mapping[str, StateKind], modules: list[str]) -> dict[str, StateKind]:
    """Return the kinds of tensors in the order of the module tree, parameters of a module first."""
    order = {name: index for index, name in enumerate(modules)}

    def place(entry: tuple[str, StateKind]) -> tuple[int, bool]:
        return order.get(entry[0].rpartition(".")[0], len(order)), entry[1] != "parameter"

    return dict(sorted(kinds.items(), key=place))
