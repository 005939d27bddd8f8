"""Graphs of programs that torch.export made."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tbscope.checks import check_truth
from tbscope.collector import collecting_rarely
from tbscope.errors import ArgumentError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Graph
from tbscope.sources.programs.archive import load_program
from tbscope.sources.programs.borders import input_paths, results_of
from tbscope.sources.programs.kinds import is_exported
from tbscope.sources.programs.places import Places, label_of
from tbscope.sources.programs.reader import Reader
from tbscope.sources.programs.slots import Held, Slot
from tbscope.sources.programs.state import State
from tbscope.sources.programs.types import TensorType
from tbscope.sources.programs.walk import Walk, classes_in
from tbscope.sources.torch.holders import container_class
from tbscope.sources.torch.signatures import with_article
from tbscope.words import error_text, shown

if TYPE_CHECKING:
    import torch

__all__ = ["from_export"]

_STATE = {"PARAMETER": "parameter", "BUFFER": "buffer"}


def from_export(exported_program_or_path: Any, *, trusted: bool = False) -> Graph:
    """Return the graph of a program that torch.export made; nothing of it is run.

    Scopes and calls come from the stack of modules that each operation carries; parameters,
    buffers and constants have their qualified names, inputs and outputs their paths. A size that
    has no number is not known on the edge; the attribute `symbolic_shape` tells its formula.

    Args:
        exported_program_or_path: An `ExportedProgram`, or the path of a `.pt2` file.
        trusted: Whether a file may have code of its author run: what torch unpickles, and
            compiled parts. Without it such a file is refused.
    Raises:
        ArgumentError: It is neither, or the file is damaged, or would run code.
    """
    check_truth("trusted", trusted)
    program = exported_program_or_path
    if isinstance(program, str | os.PathLike):
        return _of_file(program, trusted=trusted)
    if not is_exported(program):
        raise ArgumentError(
            f"from_export was given {with_article(program)}",
            why="it takes an ExportedProgram, or the path of a .pt2 file",
            fix="tbscope.from_export(torch.export.export(model, (x,)))",
        )
    with collecting_rarely():
        return _Exported(program).graph()


def _of_file(path: Any, *, trusted: bool) -> Graph:
    program = load_program(path, trusted=trusted)
    try:
        with collecting_rarely():
            return _Exported(program).graph()
    except Exception as error:  # What torch has taken may still hold together no more.
        raise ArgumentError(
            f"no graph can be made of the program in {shown(path)}",
            why=error_text(error),
            fix="write it anew with torch.export.save(program, path)",
        ) from error


class _Exported:
    """One program while it is read."""

    def __init__(self, program: Any) -> None:
        self._program = program
        module: torch.fx.GraphModule = program.graph_module
        self._module = module
        signature = program.graph_signature
        self._inputs = {spec.arg.name: spec for spec in signature.input_specs}
        self._outputs = list(signature.output_specs)
        self._names = [entry.fqn.partition("@")[0] for entry in program.module_call_graph]
        self._classes = classes_in(module)
        root_class = self._classes.get("")
        builder = GraphBuilder(label_of(root_class or "ExportedProgram"))
        self._places = Places(builder, self._class_of)
        if root_class is not None:
            self._places.open_root(root_class)
        self._reader = Reader(builder, self._places)
        tensors = {**program.state_dict, **program.constants}
        kinds: dict[str, Any] = {
            spec.target: _STATE[spec.kind.name]
            for spec in signature.input_specs
            if spec.kind.name in _STATE and spec.target is not None
        }
        self._state = State(self._reader, _in_order(kinds, self._names), tensors)

    def _class_of(self, name: str) -> str:
        return self._classes.get(name) or container_class(self._names, name)

    def graph(self) -> Graph:
        """Read the program; return its graph."""
        reader, places = self._reader, self._places
        arguments = self._add_inputs()
        given = Walk(reader, self._state).read(self._module)
        leaves = self._write_back_all(given)
        plan = getattr(self._program.call_spec, "out_spec", None)
        found, result = results_of(plan, leaves)
        if places.root is not None:
            root = places.call_of[places.root]
            root.arguments = [Argument(name, reader.nest(held)) for name, held in arguments]
            root.results = reader.nest(result)
        return self._state.finish(found, self._names, self._class_of)

    # -- inputs and outputs ---------------------------------------------------------------

    def _add_inputs(self) -> list[tuple[str, Held]]:
        """Hold all that the program is given; return the arguments of the model by name."""
        reader = self._reader
        given: list[torch.fx.Node] = []
        for node in self._module.graph.nodes:
            if node.op != "placeholder":
                continue
            spec: Any = self._inputs.get(node.name)
            kind = "USER_INPUT" if spec is None else spec.kind.name
            told = reader.type_of(node)
            if kind in _STATE:
                reader.held[node] = self._state.slot(spec.target, told)
            elif kind == "CONSTANT_TENSOR":
                reader.held[node] = self._state.constant(spec.target, told)
            elif kind == "USER_INPUT":
                constant = getattr(getattr(spec, "arg", None), "value", None)
                reader.held[node] = (
                    Slot(told)
                    if isinstance(told, TensorType)
                    else told
                    if constant is None
                    else constant
                )
                given.append(node)
            else:
                reader.held[node] = None
        leaves = [reader.held[node] for node in given]
        signature = self._program.module_call_graph[0].signature if self._names else None
        paths, arguments = input_paths(
            getattr(self._program.call_spec, "in_spec", None),
            getattr(signature, "forward_arg_names", None),
            leaves,
            [node.name for node in given],
        )
        for path, leaf in zip(paths, leaves, strict=True):
            if type(leaf) is Slot:
                leaf.value = reader.add_source("input", path, leaf.type)
        return arguments

    def _write_back_all(self, given: list[Held]) -> list[Held]:
        """Append the writes at the end of the program; return its results, flat."""
        leaves: list[Held] = []
        by_name = {node.name: held for node, held in self._reader.held.items()}
        for spec, held in zip(self._outputs, given, strict=False):
            kind = spec.kind.name
            if kind == "BUFFER_MUTATION" or kind == "PARAMETER_MUTATION":
                self._write_back(self._state.slot(spec.target), held)
            elif kind == "USER_INPUT_MUTATION":
                self._write_back(by_name.get(spec.target), held)
            elif kind in ("USER_OUTPUT", "LOSS_OUTPUT"):
                leaves.append(held)
        return leaves

    def _write_back(self, target: Held, held: Held) -> None:
        """Append what writes a new content into a buffer or an input, as the model did."""
        if type(target) is not Slot or type(held) is not Slot or target is held:
            return
        reader = self._reader
        old, new = target.read(), held.read()
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
        reader.give(node, target.type, [target, held], [target], {0: target})


def _in_order(kinds: Mapping[str, Any], modules: list[str]) -> dict[str, Any]:
    """Return what tensors are in the order of the module tree, parameters of each module first."""
    order = {name: at for at, name in enumerate(modules)}

    def place(name: str) -> tuple[int, bool]:
        return order.get(name.rpartition(".")[0], len(order)), kinds[name] != "parameter"

    return {name: kinds[name] for name in sorted(kinds, key=place)}
