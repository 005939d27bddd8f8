"""What torch's exporter knows and does not write into the file: the graph that it translated.

The file tells in which module an operation ran; which call of it, the names in the exported
program tell (`L__self__tw@1`).
"""

from dataclasses import dataclass
from typing import Any

from tbscope.ir.graph import Shape

__all__ = ["Operation", "numbers_of", "operations_of"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the program that became ONNX.

    Attributes:
        name: Its name there, and that of the value that it gives (`linear_1`).
        call: The module and the number of the call that it ran in.
        target: What it called, without namespace and overload (`linear`).
        shape: The shape of what it gives; None where that is not known.
        reads: The operations whose values it reads, by name.
        parts: The names of its results, where they are several.
    """

    name: str
    call: tuple[str, int]
    target: str
    shape: Shape | None
    reads: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


def numbers_of(program: Any) -> dict[str, tuple[int, ...]]:
    """Return which call of each module around it an operation ran in, by its name.

    Args:
        program: A `torch.export.ExportedProgram`.
    """
    return {
        node.name: tuple(_number(key) for key in node.meta.get("nn_module_stack", ()))
        for node in program.graph.nodes
    }


def operations_of(program: Any) -> list[Operation]:
    """Return the operations of an exported program, in order."""
    found = []
    for node in program.graph.nodes:
        stack = node.meta.get("nn_module_stack", {})
        # A part of a result belongs to what gave it.
        if node.op != "call_function" or not stack or _is_part(node):
            continue
        key, (name, _) = list(stack.items())[-1]
        parts = {user.args[1]: user.name for user in node.users if _is_part(user)}
        found.append(
            Operation(
                node.name,
                (name, _number(key)),
                _plain(str(node.target)),
                _shape(node.meta.get("val")),
                tuple(one.name for one in node.all_input_nodes),
                tuple(parts[place] for place in sorted(parts)),
            )
        )
    return found


def _is_part(node: Any) -> bool:
    return getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[1], int)


def _number(key: str) -> int:
    number = str(key).rpartition("@")[2]
    return int(number) if number.isdecimal() and "@" in str(key) else 0


def _plain(target: str) -> str:
    """Return the name of an operator (`linear` of `aten.linear.default`)."""
    steps = target.split(".")
    return (steps[1] if len(steps) > 1 else steps[0]).strip("_")


def _shape(value: Any) -> Shape | None:
    shape = getattr(value, "shape", None)
    if shape is None:
        return None
    return tuple(size if type(size) is int else None for size in shape)
