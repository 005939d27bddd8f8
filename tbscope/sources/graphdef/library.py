"""Puts the bodies of functions where they are called: TensorFlow's, and those of our drawings."""

from dataclasses import replace
from typing import Any

from tbscope.sources.graphdef.ops import Op, Reference, op_of, reference_of

__all__ = ["Expansion", "expand"]

# Functions that call each other can stand for any number of nodes.
_MOST_NODES = 20_000
_MOST_DEPTH = 32
# What stands in our drawings for the result of a function, or of the graph.
_RESULT = "Output"
# Under such names the page has the bodies of functions, and our drawings seeds of colours.
_LIBRARY = "__function_library__"


class Expansion:
    """The nodes of a GraphDef, and in place of each call of a function the nodes of its body.

    Attributes:
        ops: The nodes; that of a call stays, before its body.
        left: The functions of which a call was left as it is, because there were too many.
    """

    def __init__(self, message: Any) -> None:
        self._functions = {one.signature.name: one for one in message.library.function}
        # What a name stands for: an argument of a body, or the call of a function.
        self._means: dict[str, dict[str, Reference]] = {}
        self.left: dict[str, None] = {}
        self.ops: list[Op] = []
        nodes = [node for node in message.node if not node.name.startswith(_LIBRARY)]
        self._most = len(nodes) + _MOST_NODES
        self._add([op_of(node) for node in nodes], self._called(nodes), ())
        if self._means:
            for op in self.ops:
                if not op.function:
                    op.reads = [self._resolve(read) for read in op.reads]

    def _called(self, nodes: Any, prefix: str = "") -> dict[str, str]:
        """Return for each node that calls a function the name of that."""
        found = {}
        for node in nodes if self._functions else ():
            name = node.op
            if name not in self._functions and "f" in node.attr:
                name = node.attr["f"].func.name
            if name in self._functions:
                found[prefix + node.name] = name
        return found

    def _add(self, ops: list[Op], called: dict[str, str], inside: tuple[str, ...]) -> None:
        for op in ops:
            name = called.get(op.name)
            self.ops.append(op)
            if name is None:
                continue
            if name in inside or len(inside) >= _MOST_DEPTH or len(self.ops) > self._most:
                self.left[name] = None
            else:
                self._expand(op, name, (*inside, name))

    def _expand(self, call: Op, name: str, inside: tuple[str, ...]) -> None:
        function = self._functions[name]
        call.function = True
        prefix = f"{call.name}/"
        for place, argument in enumerate(function.signature.input_arg):
            if place < len(call.reads):
                self._means[prefix + argument.name] = {"": call.reads[place]}
        body = []
        for node in function.node_def:
            own = op_of(node)
            reads = [(prefix + read, output) for read, output in own.reads]
            if own.op == _RESULT and len(reads) == 1:
                self._means[prefix + own.name] = {"": reads[0]}
                continue
            waits = [prefix + other for other in own.waits]
            body.append(replace(own, name=prefix + own.name, reads=reads, waits=waits))
        results = {}
        for place, result in enumerate(function.signature.output_arg):
            read, output = reference_of(function.ret.get(result.name, result.name))
            results[str(place)] = (prefix + read, output)
        self._means[call.name] = results
        self._add(body, self._called(function.node_def, prefix), inside)

    def _resolve(self, read: Reference) -> Reference:
        """Return what an input names in the end."""
        for _ in range(2 * _MOST_DEPTH):
            known = self._means.get(read[0])
            if known is None:
                break
            read = known.get("") or known.get(read[1].rpartition(":")[2]) or read
        return read


def expand(message: Any) -> tuple[list[Op], list[str]]:
    """Return the nodes of a GraphDef with the bodies of its functions, and which were left out."""
    made = Expansion(message)
    return made.ops, list(made.left)
