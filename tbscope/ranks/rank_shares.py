"""Share of each rank in the model: its parameters, FLOPs and traffic."""

from collections.abc import Iterator, Sequence

from tbscope.analysis.costs import (
    communication_bytes,
    local_bytes,
    local_flops,
    local_numel,
)
from tbscope.ir.graph import Graph, Parameter
from tbscope.ir.metadata import Part
from tbscope.ir.module_tree import numel_of
from tbscope.ir.scope_io import OPERATIONS


def figures_of(graph: Graph) -> dict[str, int]:
    """Return the size, work and traffic of one rank, by the names of the summary's columns."""
    parameters = [parameter for _, parameter in _parameters(graph)]
    operations = [node for node in graph.nodes if node.kind in OPERATIONS]
    return {
        "parameters": sum(map(local_numel, parameters)),
        "parameter_bytes": sum(map(local_bytes, parameters)),
        "flops": sum(map(local_flops, operations)),
        "activation_bytes": sum(node.allocated_bytes for node in operations),
        "communication_bytes": sum(communication_bytes(graph).values()),
    }


def whole_model(parts: Sequence[tuple[Part, Sequence[Graph]]]) -> dict[str, int]:
    """Return the parameters of the model across all ranks, each with its full size and once.

    Parameters with one name are one parameter, on however many ranks it is; in another pipeline
    stage the name refers to another parameter.
    """
    parameters: dict[tuple[int | None, str], Parameter] = {}
    for part, graphs in parts:
        for graph in graphs:
            for name, parameter in _parameters(graph):
                parameters.setdefault((part.stage, name), parameter)
    return {
        "model_parameters": sum(map(numel_of, parameters.values())),
        "model_parameter_bytes": sum(parameter.size_bytes for parameter in parameters.values()),
    }


def _parameters(graph: Graph) -> Iterator[tuple[str, Parameter]]:
    """Yield the parameters of a graph with their names; tied ones only under their first name."""
    tied: set[int] = set()
    for module in graph.modules:
        for parameter in module.parameters:
            if parameter.kind == "parameter" and parameter.number not in tied:
                # A negative number means that ties are unknown; then each parameter counts.
                if parameter.number >= 0:
                    tied.add(parameter.number)
                yield f"{module.name}.{parameter.name}", parameter
