"""Graph of an ONNX model, with its modules, their parameters, and their calls."""

import os
from typing import TYPE_CHECKING

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Graph, Module, Node, Note, Parameter
from tbscope.ir.scope_io import STATE, describe_calls
from tbscope.sources.fx.tensor_types import add_value
from tbscope.sources.onnx.body import (
    BodyReader,
    ModelState,
    broken,
    check_functions,
    function_key,
)
from tbscope.sources.onnx.loading import load_model
from tbscope.sources.onnx.origins import origin_finder
from tbscope.sources.onnx.scoping import ModuleScopes, label_of
from tbscope.sources.onnx.types import infer, initializers_of, type_of
from tbscope.utils.files import path_of

if TYPE_CHECKING:
    from onnx import ModelProto


def from_onnx(path_or_proto: object) -> Graph:
    """Read an ONNX model as a graph, grouped by the modules from which it was exported.

    Modules are found in the metadata that `torch.onnx.export(dynamo=True)` writes; else in the
    names of nodes (`/layer1/layer1.0/conv1/Conv`), as written by torch's exporter before it and
    by others; else in the names of parameters. A call of a local function is a scope with the
    body of the function; each body of an If, Loop or Scan is a scope, too. The model does not
    run, and its data in other files is not read.

    >>> import torch, tbscope
    >>> model = torch.nn.Linear(3, 5).eval()
    >>> program = torch.onnx.export(model, (torch.rand(1, 3),), dynamo=True, verbose=False)
    >>> [node.op for node in tbscope.from_onnx(program).nodes if node.kind == "op"]
    ['Gemm']

    Args:
        path_or_proto: The path of an .onnx file, a `ModelProto`, an `onnx_ir.Model`, or the
            `ONNXProgram` of `torch.onnx.export`.
    Returns:
        The graph. A size that has a name alone (`batch`) is None; the name is in the attribute
        `symbolic_shape`.
    Raises:
        ArgumentError: onnx is not installed, the argument is no model, the model is broken, or
            one of its functions calls itself.
    """
    model = load_model(path_or_proto)
    try:
        title = os.path.basename(path_of(path_or_proto) or "").removesuffix(".onnx")
        return _read(model, title)
    except (UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise broken(f"it cannot be read: {type(error).__name__}: {error}") from error


def _read(model: "ModelProto", title: str) -> Graph:
    """Return the graph of a model.

    Args:
        model: A `ModelProto`.
        title: The name of its file.
    """
    functions = {function_key(item.domain, item.name, item): item for item in model.functions}
    check_functions(functions)
    inferred, initializers = infer(model), initializers_of(model.graph)
    parameters = {
        name for name, item in initializers.items() if item.kind == "parameter" and "." in name
    }
    build = GraphBuilder(model.graph.name or title or "graph")
    scopes = ModuleScopes(build)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    way, numbers = origin_finder(inferred.nodes, model.functions, parameters)
    reading = ModelState(model, build, scopes, functions, versions, numbers)
    body = BodyReader(reading, way, inferred.types, initializers)
    for origin in map(body.origin, inferred.nodes):
        # The module with an empty name is the model: its class names the graph.
        if origin is not None and not [*(level.name for level in origin.levels), origin.name][0]:
            class_name = origin.levels[0].class_name if origin.levels else origin.target
            if class_name:
                build.graph.name = label_of(class_name)
                break
    for entry in model.graph.input:
        if entry.name not in initializers:
            node = build.append_source("input", entry.name)
            body.values[entry.name] = add_value(node, type_of(entry.type))
    body.add(inferred.nodes)
    for entry in model.graph.output:
        build.add_output(entry.name, body.value(entry.name, None))
    describe_calls(
        build.graph,
        scopes.calls.values(),
        lambda scope: scopes.runs_in.get(scope, scope.parent),
        owned=STATE,
    )
    for scope, arguments, results in reading.calls:
        scopes.calls[scope].arguments, scopes.calls[scope].results = arguments, results
    _describe_modules(build.graph)
    if inferred.failure:
        build.graph.notes.append(Note(f"shapes were not inferred: {inferred.failure}"))
    return build.finish()


def _describe_modules(graph: Graph) -> None:
    """Set the modules of a graph, and the parameters and buffers of modules and their calls.

    A scope that has the name of a module counts as one. A parameter of no module belongs to the
    model itself.
    """
    classes: dict[str, str] = {"": ""}
    for scope in graph.scopes():
        if scope.qualified_name is not None:
            classes.setdefault(scope.qualified_name, "")
    for call in graph.calls:
        if call.qualified_name is not None and not classes[call.qualified_name]:
            classes[call.qualified_name] = call.class_name
    parameters: dict[str, list[Parameter]] = {name: [] for name in classes}
    for number, node in enumerate(node for node in graph.nodes if node.kind in STATE):
        owner, _, name = node.name.rpartition(".")
        if owner not in parameters:
            owner, name = "", node.name
        parameters[owner].append(_parameter(name, node, number))
    for call in graph.calls:
        if call.qualified_name is not None:
            call.parameters = tuple(parameters[call.qualified_name])
    graph.modules = [Module(name, classes[name], tuple(parameters[name])) for name in classes]


def _parameter(name: str, node: Node, number: int) -> Parameter:
    value = node.outputs[0]
    return Parameter(
        name,
        "buffer" if node.kind == "buffer" else "parameter",
        value.shape,
        value.dtype,
        value.size_bytes or 0,
        requires_grad=node.kind == "parameter",
        number=number,
    )
