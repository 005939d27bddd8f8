"""The bodies of operations that take functions: `cond`, `while_loop`, `scan` and others.

Each body stands in a scope of its own, once, as a program holds it, before the operation that
runs it and that reads what it gives. What only sets a mode for its body (`no_grad`, autocast),
or keeps no activations of it, is not there for the reader: the body stands where it ran.
"""

from collections.abc import Callable
from typing import Any

import torch

from tbscope.ir.graph import Argument, Constant
from tbscope.sources.programs.reader import Reader
from tbscope.sources.programs.slots import Held, Slot, slots_in
from tbscope.sources.programs.types import TensorType
from tbscope.sources.programs.work import Done
from tbscope.sources.torch.operations import kernel_facts, operation_name

__all__ = ["Body", "call_with_bodies"]

_WITH_BACKWARD = "autograd_function_apply"
_TRANSPARENT = (
    *("wrap_with_set_grad_enabled", "wrap_with_autocast", "wrap", "tag_activation_checkpoint"),
    *("wrap_activation_checkpoint", "invoke_subgraph", _WITH_BACKWARD),
)


class Body:
    """A function that is an argument of an operation.

    Args:
        name: Under which name the program holds it.
        module: Its nodes.
    """

    __slots__ = ("module", "name")

    def __init__(self, name: str, module: torch.fx.GraphModule) -> None:
        self.name = name
        self.module = module


def call_with_bodies(
    reader: Reader, node: torch.fx.Node, read_body: Callable[[Body, list[Held]], list[Any]]
) -> Held:
    """Read a node that calls an operator with functions; return what it gives.

    Args:
        reader: Who reads the program.
        node: The node.
        read_body: Reads the nodes of a body with what it is given; returns what it gives.
    """
    args, kwargs = reader.of(node.args), reader.of(node.kwargs)
    target: Any = node.target
    facts = kernel_facts(target)
    name = operation_name(target)
    given = _flat(args)
    if not any(type(entry) is Body for entry in given):
        given += _flat(kwargs)
    bodies = [entry for entry in given if type(entry) is Body]
    operands = [entry for entry in given if type(entry) is not Body]
    if name == _WITH_BACKWARD:
        # The second one runs in the backward pass.
        bodies = bodies[:1]
    told = reader.type_of(node)
    if name in _TRANSPARENT and len(bodies) == 1:
        results = read_body(bodies[0], _handed_on(reader, node, bodies[0], operands))
        return results[0] if isinstance(told, TensorType) and len(results) == 1 else results
    scope, _ = reader.where(node)
    given_back: list[Slot] = []
    for body in bodies:
        handed_on = _handed_on(reader, node, body, operands)
        with reader.places.body(body.name, scope):
            results = read_body(body, handed_on)
        given_back += [slot for slot in slots_in(results) if slot not in given_back]
    arguments, read = reader.arguments(_named(args), _named(kwargs))
    appended = reader.append(name, node, arguments, read, Done(kernels=(facts.name,)))
    appended.inputs += [slot.read() for slot in given_back if slot not in read]
    appended.flops = 0
    return reader.give(appended, told, read)


def _handed_on(reader: Reader, node: torch.fx.Node, body: Body, operands: list[Held]) -> list[Held]:
    """Return what a body is given, in order; a slice of an operand where it is given a part."""
    places = [one for one in body.module.graph.nodes if one.op == "placeholder"]
    fits = len(operands) >= len(places)
    last = operands[len(operands) - len(places) :] if fits else []
    handed_on: list[Held] = []
    for at, place in enumerate(places):
        told = reader.type_of(place)
        operand = last[at] if fits else None
        if not isinstance(told, TensorType) or _is_whole(operand, told):
            handed_on.append(operand)
        else:
            whole = [operand] if type(operand) is Slot else list(slots_in(operands))
            read = list(dict.fromkeys(whole))
            arguments = [Argument(None, slot.read()) for slot in read]
            handed_on.append(
                reader.give(reader.append("slice", node, arguments, read, Done(flops=0)), told)
            )
    return handed_on


def _is_whole(operand: Held, told: TensorType) -> bool:
    """Tell whether a body is given an operand as it is, and no part of it."""
    if type(operand) is not Slot:
        return False
    one, other = operand.type.shape, told.shape
    return one is None or other is None or len(one) == len(other)


def _flat(given: Any) -> list[Any]:
    if isinstance(given, tuple | list):
        return [leaf for entry in given for leaf in _flat(entry)]
    if isinstance(given, dict):
        return [leaf for entry in given.values() for leaf in _flat(entry)]
    return [given]


def _named(given: Any) -> Any:
    """Return arguments with the names of bodies in their places."""
    if type(given) is Body:
        return Constant(f"<{given.name}>")
    if isinstance(given, tuple | list):
        return type(given)([_named(entry) for entry in given])
    if isinstance(given, dict):
        return {key: _named(entry) for key, entry in given.items()}
    return given
