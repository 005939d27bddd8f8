"""Export to ONNX, and regrouping: each call of a selected module becomes a call of a function."""

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tbscope.errors import ArgumentError, TraceError
from tbscope.ir.graph import Graph, require_graph
from tbscope.messages import error_text, shown
from tbscope.sources.eager.trace import trace
from tbscope.sources.onnx.export.call_order import CallOrder, numbers_of, operations_of
from tbscope.sources.onnx.export.function_builder import (
    FunctionBuilder,
    FunctionRequest,
    NewFunction,
    NodeRegion,
    RegionIndex,
)
from tbscope.sources.onnx.loading import is_program, load_model
from tbscope.sources.onnx.origins import (
    ModuleRef,
    Origin,
    fill_from_neighbours,
    origin_by_metadata,
    origin_metadata,
)
from tbscope.sources.onnx.scoping import CallFinder, ModuleCall, label_of
from tbscope.sources.onnx.types import import_extra
from tbscope.sources.torch.calling.bind import DummyInputs, bind_inputs
from tbscope.utils.files import path_of
from tbscope.utils.validation import Dtypes, InputSize, check_truth

if TYPE_CHECKING:
    import onnx_ir as ir
    from torch.onnx import ONNXProgram

__all__ = ["Regrouped", "export_onnx", "modules_to_functions"]

Modules: TypeAlias = Collection[type | str] | type | str | None
"""Selection of the modules that become functions: classes, names and patterns of names. None for
all modules inside the model."""

_DOMAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


@dataclass(frozen=True, slots=True)
class Regrouped:
    """A model whose modules are functions.

    Attributes:
        model: The model: an `onnx_ir.Model` for an `onnx_ir.Model` or an `ONNXProgram`, a
            `ModelProto` for a message or a file.
        functions: A line for each new function: its arguments, its hyper-parameters, its results,
            and the number of its calls.
        left: A sentence for each call of a module that stays inline, with the reason.
    """

    model: Any
    functions: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([*self.functions, *(f"left inline: {text}" for text in self.left)])


def modules_to_functions(
    onnx_model: object,
    modules: Modules = None,
    *,
    domain: str = "modules",
    record: Graph | None = None,
) -> Regrouped:
    """Make the calls of modules local functions of an ONNX model.

    >>> import torch, tbscope
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    >>> args = (torch.rand(1, 3),)
    >>> program = torch.onnx.export(model.eval(), args, dynamo=True, verbose=False)
    >>> regrouped = tbscope.modules_to_functions(program, torch.nn.Linear)
    >>> print(*regrouped.functions)
    modules::Linear(%input, %weight, %bias) -> (%linear), 2 uses

    Args:
        onnx_model: The result of `torch.onnx.export(..., dynamo=True)`: an `ONNXProgram`, a path,
            a `ModelProto` or an `onnx_ir.Model`. It is not changed.
        modules: The selected modules: classes, qualified names and patterns of them
            (`layers.*`), names of classes. None for all but the outermost.
        domain: The domain of the functions.
        record: The graph of `tbscope.trace` for the same model, only with an `ONNXProgram`: it
            has the order of arguments and results, their names, and the hyper-parameters.
            Without it, inputs are in the order in which they are read.
    Returns:
        The model. Equal bodies are one function, a module inside of another module is called in
        the body of that function, and initializers that a body reads are passed after its
        arguments. A call that cannot be a function stays inline, and is listed in `left`.
    Raises:
        ArgumentError: onnx_ir is not installed; the argument is no model, or its nodes have no
            module metadata; no module is selected; or there is a record without an `ONNXProgram`.
    """
    chosen = _selector(modules)
    domain = _check_domain(domain)
    if record is not None:
        require_graph(record, "modules_to_functions")
    return _Regrouping(onnx_model, domain, record).run(chosen, modules)


class _Regrouping:
    """The replacement of module calls by function calls, in a copy of one model."""

    def __init__(self, source: Any, domain: str, record: Graph | None) -> None:
        ir = import_extra("onnx_ir")
        self._as_message = True
        program = None
        if is_program(source):
            program, source = source.exported_program, source.model
        elif record is not None:
            raise ArgumentError(
                f"record= is given with {shown(source)}",
                why="only the ONNXProgram of torch.onnx.export has the names of its operations",
                fix="program = torch.onnx.export(model, args, dynamo=True); "
                "tbscope.modules_to_functions(program, record=record)",
            )
        if isinstance(source, ir.Model):
            self._as_message = False
            self._model = source.clone()
        elif (path := path_of(source)) is not None:
            # Called for its errors alone, which say why a file is no valid model.
            load_model(source)
            self._model = ir.load(path, format="protobuf")
        else:
            self._model = ir.from_proto(load_model(source))
        self._graph = self._model.graph
        # Functions have metadata, in which their module is named, from IR version 10 on.
        self._model.ir_version = max(self._model.ir_version, 10)
        self._left: list[str] = []
        self._functions = FunctionBuilder(self._model, domain)
        self._cutter = RegionIndex(self._graph)
        self._find_places(CallFinder({} if program is None else numbers_of(program)))
        self._order = None if record is None else self._make_order(record, program)

    def run(self, chosen: "Callable[[ModuleRef], bool]", modules: Modules) -> Regrouped:
        calls = [call for call in self._all if chosen(call.level)]
        # A model that is one layer has no module inside.
        if not calls and modules is not None:
            self._refuse(modules)
        # Inner modules first: the body of an outer one calls them.
        for call in sorted(calls, key=lambda call: -len(call.path())):
            self._regroup(call)
        self._model.graph.sort()
        model = import_extra("onnx_ir").to_proto(self._model) if self._as_message else self._model
        functions: list[NewFunction] = self._functions.made
        return Regrouped(model, [str(function) for function in functions], self._left)

    def _find_places(self, places: CallFinder) -> None:
        """Find the module calls of each node, and all calls in order, outer calls first."""
        nodes = list(self._graph)
        origins = [origin_by_metadata(node.metadata_props) for node in nodes]
        if not any(origin is not None and origin.levels for origin in origins):
            raise ArgumentError(
                "the modules of a model that lists none cannot be made functions",
                why="its nodes have no metadata of the kind 'pkg.torch.onnx.name_scopes'",
                fix="export it again: torch.onnx.export(model, args, path, dynamo=True)",
            )
        self._origins: dict[ir.Node, Origin | None] = {}
        # The nodes of each call in order; a dict serves as a set with order, as nodes are removed.
        self._nodes: dict[ModuleCall, dict[ir.Node, None]] = {}
        self._all: list[ModuleCall] = []
        values = [
            (
                [str(value.name) for value in node.inputs if value],
                [str(value.name) for value in node.outputs],
            )
            for node in nodes
        ]
        for node, origin in zip(nodes, fill_from_neighbours(origins, values), strict=True):
            self._origins[node] = origin
            if origin is not None and not origin.name:
                # The modules follow from the neighbours, which may change: write them down now.
                name = str(node.outputs[0].name) if node.outputs else ""
                written_origin = origin._replace(name=name, target=node.op_type)
                node.metadata_props.update(origin_metadata(written_origin))
            innermost = places.of(origin) if origin is not None and origin.levels else None
            for call in innermost.path() if innermost else []:
                if call not in self._nodes:
                    self._nodes[call] = {}
                    if not call.level.by_hand:
                        self._all.append(call)
                self._nodes[call][node] = None

    def _make_order(self, record: Graph, program: Any) -> CallOrder:
        values = dict(self._graph.initializers.items())
        for node in self._graph:
            origin = self._origins[node]
            if origin is not None and origin.name:
                values[origin.name] = node.outputs[0]
        for node in self._graph:
            values.update({str(value.name): value for value in node.outputs})
        values.update({str(value.name): value for value in self._graph.inputs})
        calls = [(call.level.name, call.level.class_name, call.number) for call in self._all]
        operations = operations_of(program)
        return CallOrder(record, operations, values, list(self._graph.inputs), calls)

    def _regroup(self, module_call: ModuleCall) -> None:
        """Replace one call of a module by a call of a function, or record why it stays inline."""
        region = self._cutter.region(list(self._nodes[module_call]))
        number = f", call {module_call.number}" if module_call.number else ""
        call_name = (
            f"{module_call.level.name or 'the model'} ({module_call.level.class_name}{number})"
        )
        if region.cycle is not None:
            self._left.append(
                f"{call_name}: {region.cycle} leaves it and comes back through nodes outside"
            )
            return
        if not region.outputs:
            self._left.append(f"{call_name}: nothing that it gives is read")
            return
        levels = tuple(enclosing.level for enclosing in module_call.path())
        names: dict[ir.Value, str] = {}
        attributes: list[ir.Attr] = []
        call = self._order.call(module_call.level.name, module_call.number) if self._order else None
        if self._order is not None and call is not None:
            inputs, initializers, names = self._order.sort_inputs(
                call, region.inputs, region.initializers
            )
            outputs = self._order.sort_outputs(call, region.outputs)
            region = NodeRegion(region.nodes, inputs, initializers, outputs, None)
            convert = import_extra("onnx_ir").convenience.convert_attributes
            attributes = convert(_plain(call.hyperparameters))
        wanted = FunctionRequest(region, names, levels, attributes)
        node = self._functions.call(wanted)
        self._cutter.replace(region, node)
        if self._order is not None:
            self._order.renamed(zip(region.outputs, node.outputs, strict=True))
        for enclosing in module_call.path():
            nodes = self._nodes[enclosing]
            for old_node in region.nodes:
                del nodes[old_node]
            nodes[node] = None

    def _refuse(self, modules: Modules) -> None:
        names = dict.fromkeys(call.level.name for call in self._all if call.level.name)
        classes = dict.fromkeys(label_of(call.level.class_name or "") for call in self._all)
        raise ArgumentError(
            f"modules={shown(modules)} means no module of the ONNX model",
            why=f"it has modules of the classes {', '.join(classes)}",
            fix=f"modules=[{next(iter(names), '')!r}], or a class",
        )


def _plain(hyperparameters: Mapping[str, object]) -> dict[str, object]:
    """Return hyper-parameters in the types of ONNX attributes: numbers, texts, one-type lists."""
    attributes: dict[str, object] = {}
    for name, value in hyperparameters.items():
        if value is not None and value != [] and value != ():
            entries = value if isinstance(value, list | tuple) else [value]
            kinds = set(map(type, entries))
            is_plain = len(kinds) == 1 and kinds <= {bool, int, float, str}
            attributes[name] = value if is_plain else str(value)
    return attributes


# -- checks of the selection and the domain --------------------------------------------------


def _selector(modules: Modules) -> "Callable[[ModuleRef], bool]":
    """Return a function that says whether a module is selected.

    Raises:
        ArgumentError: `modules` is no selection.
    """
    if modules is None:
        return lambda level: bool(level.name)
    listed = [modules] if isinstance(modules, str | type) else modules
    is_list = isinstance(listed, list | tuple | set | frozenset)
    if not is_list or not all(isinstance(entry, str | type) for entry in listed):
        raise ArgumentError(
            f"modules={shown(modules)} selects no modules",
            why="modules are selected by a list of classes, names, and patterns of names",
            fix="modules={Layer, 'layers.*'}",
        )
    patterns = [
        entry if isinstance(entry, str) else f"{entry.__module__}.{entry.__qualname__}"
        for entry in listed
    ]

    def means(level: ModuleRef) -> bool:
        class_name = level.class_name or ""
        return any(
            pattern in (class_name, label_of(class_name)) or fnmatchcase(level.name, pattern)
            for pattern in patterns
        )

    return means


def _check_domain(domain: object) -> str:
    """Return a domain as a plain text, if functions may be in it.

    Raises:
        ArgumentError: The domain is no name, or is the domain of ONNX's own operators.
    """
    plain = str.__str__(domain) if isinstance(domain, str) else ""
    if not _DOMAIN.fullmatch(plain) or plain == "ai.onnx":
        raise ArgumentError(
            f"domain={shown(domain)} cannot be that of functions",
            why="it is a name of letters, digits, dots and dashes, and not that of ONNX itself",
            fix="domain='my.model'",
        )
    return plain


_MOST_BYTES = 1 << 30


def export_onnx(
    model: torch.nn.Module,
    input_to_model: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    input_size: InputSize | None = None,
    dtypes: Dtypes | None = None,
    modules: Modules = None,
    domain: str = "modules",
    training: bool | None = False,
    **options: object,
) -> Regrouped:
    """Export a model to ONNX, and make the calls of its modules local functions.

    A trace of one call records the order of each module's arguments; then
    `torch.onnx.export(..., dynamo=True)` exports the model. Its state is afterwards as before.

    >>> import torch, tbscope
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    >>> exported = tbscope.export_onnx(model, torch.rand(1, 3), path="net.onnx")
    >>> print(*exported.functions)
    modules::Linear(%input, %weight, %bias; in_features, out_features, bias) -> (%linear), 2 uses

    Args:
        model: The module.
        input_to_model: The inputs, as for `trace`; so are `kwargs`, `input_size` and `dtypes`.
        kwargs: Further keyword arguments.
        path: The path of the file to write; None to write no file. A model of more than 1 GiB
            has its data in a second file, named like the first with `.data`.
        input_size: The sizes of generated inputs.
        dtypes: Their element types.
        modules: Which modules become functions, as for `modules_to_functions`.
        domain: The domain of the functions.
        training: Whether the model is exported in training mode; None for its present mode.
        options: Further options of `torch.onnx.export` (`dynamic_shapes`, `opset_version`).
    Returns:
        The model, as an `onnx_ir.Model`, with a description of its functions.
    Raises:
        TraceError: The model raises, or cannot be exported.
        ArgumentError: A package of the extra is not installed; an argument does not fit.
    """
    ir = import_extra("onnx_ir")
    import_extra("onnxscript")
    check_truth("training", training, none="the present mode of each module")
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(
            f"no module is exported of {shown(model)}",
            why="the calls of modules become functions, and only a module has some",
            fix="export_onnx(model, (x,), path='model.onnx')",
        )
    if options.get("dynamo") is False:
        raise ArgumentError(
            "dynamo=False exports a model without its modules",
            why="the older exporter does not write the module of each node",
            fix="leave dynamo out",
        )
    if path is not None and not Path(path).parent.is_dir():
        raise ArgumentError(
            f"no model can be written to path={shown(os.fspath(path))}",
            why="there is no such directory",
            fix=f"mkdir -p {Path(path).parent}",
        )
    domain = _check_domain(domain)
    _selector(modules)
    made = DummyInputs(input_size, dtypes)
    args, keywords = bind_inputs(model, input_to_model, kwargs, made=made)
    record = trace(model, args, kwargs=keywords, training=training)
    program = _export(model, args, keywords, training, {**options, "dynamo": True})
    result = modules_to_functions(program, modules, domain=domain, record=record)
    if path is not None:
        tensors = [value.const_value for value in result.model.graph.initializers.values()]
        size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        data = f"{os.path.basename(os.fspath(path))}.data" if size > _MOST_BYTES else None
        ir.save(result.model, path, external_data=data)
    return result


def _export(
    model: torch.nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    training: bool | None,
    options: dict[str, Any],
) -> "ONNXProgram | None":
    modes = {module: module.training for module in model.modules()}
    options.setdefault("verbose", False)
    try:
        if training is not None:
            model.train(training)
        return torch.onnx.export(model, args, kwargs=kwargs, **options)
    except Exception as error:  # The exporter raises errors of many kinds.
        reason: BaseException = error
        # Its own errors advise about the exporter, and the reason is their cause.
        while reason.__cause__ and type(reason).__module__.startswith("torch.onnx"):
            reason = reason.__cause__
        raise TraceError(
            f"{type(model).__name__} cannot be exported to ONNX",
            why=error_text(reason),
            fix="torch.onnx.export(model, args, dynamo=True, report=True) has details",
        ) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
