"""The text of a graph: what `str(graph)` and `str(node)` print, one node a line.

    graph(%x : Float(1, 2)):
      %1 : Float(1, 2) = linear(%x, %layer1.0.weight, %layer1.0.bias), scope: Net/Linear[fc]
      return (%1)

The form is that of TorchScript. Its only reader is a person; nothing parses it.
"""

import re
from collections.abc import Callable, Iterable

from tbscope.ir.graph import (
    Argument,
    Graph,
    Nest,
    Node,
    Output,
    Parameter,
    Shape,
    Sharding,
    Value,
)
from tbscope.ir.nests import map_nest
from tbscope.ir.nodes import OPERATIONS, STATE
from tbscope.words import one_line

__all__ = [
    "body_to_lines",
    "constants_of",
    "graph_to_text",
    "listed",
    "nest_to_text",
    "node_to_text",
    "type_text",
    "type_to_text",
]

# A head or an end that is wider takes one line for each of its entries.
_WIDTH = 100

# Source: TorchScript's words for scalar types, c10/core/ScalarType.h.
_DTYPE_WORDS = {
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "bfloat16": "BFloat16",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
    "complex32": "ComplexHalf",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}

# The name of an output that is a tensor, or the entry of a plain tuple or list: its
# place tells as much.
_NAME_THAT_IS_A_PLACE = re.compile(r"out(\.[0-9]+)*")


def type_to_text(typed: "Value | Parameter", *, device: bool = True) -> str:
    """Return the type of a value or parameter as TorchScript writes it.

    Args:
        typed: What has a shape and a dtype, and maybe a device.
        device: Whether its device is told.
    Returns:
        `Float(1, 2)`; `?` for a size that is not known, `*` for an unknown rank, and the
        device where it is not the CPU: `Long(?, 8, device=cuda:0)`. One that is spread over
        ranks tells what is here, and how it lies: `Float(8, 8, here=(4, 8) by tp: Shard(0))`.
    """
    stands = getattr(typed, "device", "cpu") if device else "cpu"
    return type_text(typed.shape, typed.dtype, stands, typed.sharding)


def type_text(shape: Shape | None, dtype: str, device: str, sharding: Sharding | None) -> str:
    """Return what `type_to_text` does of what has this type."""
    sizes = ["*"] if shape is None else ["?" if size is None else str(size) for size in shape]
    if device != "cpu":
        sizes.append(f"device={device}")
    if sharding is not None:
        sizes.append(f"here={sharding}")
    return f"{_DTYPE_WORDS.get(dtype, dtype)}({', '.join(sizes)})"


def node_to_text(node: Node, *, source: bool = False) -> str:
    """Return one node as one line.

    Args:
        node: An operation, or a source of values (`%x : Float(1, 2) = input()`).
        source: Whether to end in the place in the user's code (`# net.py:12 in forward`).
    Returns:
        `%1 : Float(1, 2) = linear(%x, %fc.weight), scope: Net/Linear[fc]`. An operation
        that gives nothing has no ` = `; one that waits for others names them (`after: %3`),
        and one outside of the forward pass its phase (`phase: backward`).
    """
    is_source = node.kind not in OPERATIONS
    text = f"{node.kind if is_source else one_line(node.op)}({', '.join(_operands(node))})"
    if node.outputs:
        text = f"{', '.join(map(_typed_name, node.outputs))} = {text}"
    if node.control_inputs:
        text += f", after: {_node_names(node.control_inputs)}"
    if node.scope is not None:
        text += f", scope: {one_line(node.scope.path)}"
    if node.phase != "forward":
        text += f", phase: {node.phase}"
    if source and node.source is not None:
        text += f"  # {one_line(str(node.source))}"
    return text


def graph_to_text(graph: Graph, *, sources: bool = False, parameters: bool = False) -> str:
    """Return a graph as text: inputs in the head, one node a line, outputs at the end.

    Args:
        graph: The graph.
        sources: Whether each line ends in the place in the user's code.
        parameters: Whether parameters and buffers have lines of their own; else they
            are told only by the operations that read them, by their qualified names.
    Returns:
        Lines without a line end after the last. An input that was given under two names
        has both: `%input_ids = %labels : Long(1, 8)`.
    """
    inputs = [_input(node, value) for node in graph.inputs for value in node.outputs]
    lines = body_to_lines(graph, sources=sources, parameters=parameters)
    return "\n".join([listed("graph(", inputs, "):"), *lines])


def body_to_lines(graph: Graph, *, sources: bool = False, parameters: bool = False) -> list[str]:
    """Return the lines of a graph below its head: one for each node, and what it returns."""
    hidden = {"input"} if parameters else {"input", *STATE}
    lines = [
        f"  {node_to_text(node, source=sources)}" for node in graph.nodes if node.kind not in hidden
    ]
    lines.append(listed("  return (", list(map(_output, graph.outputs)), ")"))
    return lines


def listed(start: str, entries: list[str], end: str) -> str:
    """Return entries between a start and an end: on one line, or where that is wide, on several."""
    line = start + ", ".join(entries) + end
    if len(line) <= _WIDTH:
        return line
    return start + f",\n{' ' * len(start)}".join(entries) + end


def _operands(node: Node) -> Iterable[str]:
    if not node.arguments:
        return map(_name, node.inputs)
    return map(_argument, node.arguments)


def _argument(argument: Argument) -> str:
    told = nest_to_text(argument.nest)
    return told if argument.name is None else f"{argument.name}={told}"


def _entry(entry: Nest) -> str:
    # A value is known by its producer, for this file stands below graph.py.
    return _name(entry) if hasattr(entry, "producer") else one_line(repr(entry))


def nest_to_text(nest: Nest, entry: Callable[[Nest], str] = _entry) -> str:
    """Return a nest as the arguments of a printed node have it.

    Args:
        nest: The nest.
        entry: Gives the text of each value and constant in it.
    """
    kind = type(nest)
    if kind is list:
        return f"[{', '.join(nest_to_text(one, entry) for one in nest)}]"
    if kind is tuple:
        comma = "," if len(nest) == 1 else ""
        return f"({', '.join(nest_to_text(one, entry) for one in nest)}{comma})"
    if kind is dict:
        told = (f"{one_line(repr(key))}: {nest_to_text(one, entry)}" for key, one in nest.items())
        return f"{{{', '.join(told)}}}"
    return entry(nest)


def constants_of(node: Node) -> tuple[str, ...]:
    """Return the arguments of a node as texts, with None in the place of each value."""
    return tuple(
        f"{name}={plain}" if name else plain
        for name, nest in node.arguments
        for plain in [repr(map_nest(nest, _without_value))]
    )


def _without_value(entry: Nest) -> Nest:
    return None if isinstance(entry, Value) else entry


def _output(output: Output) -> str:
    text = _name(output.value)
    if not _NAME_THAT_IS_A_PLACE.fullmatch(output.name):
        text = f"{one_line(output.name)}={text}"
    if output.control_inputs:
        text += f" after {_node_names(output.control_inputs)}"
    return text


def _node_names(nodes: "Iterable[Node]") -> str:
    return ", ".join(f"%{one_line(node.name)}" for node in nodes)


def _input(node: Node, value: Value) -> str:
    also = str(node.attributes.get("also", ""))
    others = [f" = %{one_line(name)}" for name in also.split(", ") if name]
    return f"{_name(value)}{''.join(others)} : {type_to_text(value)}"


def _typed_name(value: Value) -> str:
    return f"{_name(value)} : {type_to_text(value)}"


def _name(value: Value) -> str:
    return f"%{one_line(value.name)}"
