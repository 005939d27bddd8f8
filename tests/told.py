"""All that a graph holds, as plain data, so that two graphs can be compared part by part."""

from typing import Any

from tbscope.ir.graph import Body, Call, Graph, Node, Value


def told(graph: Graph) -> dict[str, Any]:
    """Give all that a graph holds, nodes by their names and scopes by their paths."""
    return {
        "nodes": [_node(node) for node in graph.nodes],
        "calls": [_call(call) for call in graph.calls],
        "outputs": [
            (one.name, _nest(one.value), _names(one.control_inputs), one.via)
            for one in graph.outputs
        ],
        "inputs": _names(graph.inputs),
        "notes": [(note.text, note.topic, note.node and note.node.name) for note in graph.notes],
        "rest": (graph.name, graph.signatures, graph.rank, graph.modules, graph.uncounted),
    }


def _node(node: Node) -> Any:
    edges = (_nest(node.inputs), _nest(node.outputs), _names(node.control_inputs))
    arguments = [(name, _nest(nest)) for name, nest in node.arguments]
    kind = (node.op, node.kind, node.role, node.random, node.writes, node.phase, node.attributes)
    run = (node.source, node.kernels, node.flops, node.gradients, node.allocated_bytes)
    scope = node.scope and node.scope.path
    body = node.body and _body(node.body)
    return node.name, scope, kind, edges, arguments, run, node.measured, body


def _body(body: Body) -> Any:
    kernels = [_node(kernel) for kernel in body.nodes]
    return kernels, _nest(body.results), _names(body.writers)


def _call(call: Call) -> Any:
    arguments = [(name, _nest(nest)) for name, nest in call.arguments]
    module = (call.class_name, call.qualified_name, dict(call.hyperparameters), call.training)
    place = (call.scope.path, call.number, call.source, call.defined)
    return place, module, arguments, _nest(call.results), call.parameters


def _nest(nest: Any) -> Any:
    if isinstance(nest, Value):
        return ("value", nest.producer.name, nest.index, nest.shape, nest.dtype, nest.device)
    if type(nest) in (list, tuple):
        return (type(nest).__name__, *map(_nest, nest))
    if type(nest) is dict:
        return {key: _nest(held) for key, held in nest.items()}
    return (type(nest).__name__, repr(nest))


def _names(nodes: Any) -> list[str]:
    return [node.name for node in nodes]
