"""Puts the bodies of functions where they are called: TensorFlow's, and those of our drawings."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from tbscope.sources.graphdef.ops import Op, Reference, op_of, reference_of

__all__ = ["Expansion", "expand"]

# Functions that call each other can stand for any number of nodes.
_MOST_NODES = 20_000
_MOST_DEPTH = 32
# What stands in our drawings for the result of a function, or of the graph.
_RESULT = "Output"
# Under such names the page has the bodies of functions, and our drawings seeds of colours.
_LIBRARY = "__function_library__"
# What decides which function runs, or how often: how many of its inputs are no arguments of them.
_DECIDING = {
    f"{form}{name}": count
    for form in ("", "Stateless")
    for name, count in (("If", 1), ("Case", 1), ("While", 0))
}
_BODIES = ("then_branch", "else_branch", "branches", "cond", "body")


class _Body(NamedTuple):
    """A function that a node runs.

    Attributes:
        label: What it is to the node; empty for the function of a call, which the node stands for.
        function: Its name.
        first: The first input of the node that is an argument.
    """

    label: str
    function: str
    first: int = 0


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

    def _called(self, nodes: Any, prefix: str = "") -> dict[str, list[_Body]]:
        """Return for each node that calls functions which these are."""
        found = {}
        for node in nodes if self._functions else ():
            name = node.op
            if name not in self._functions and "f" in node.attr:
                name = node.attr["f"].func.name
            if name in self._functions:
                found[prefix + node.name] = [_Body("", name)]
            elif node.op in _DECIDING:
                found[prefix + node.name] = list(self._bodies(node))
        return found

    def _bodies(self, node: Any) -> Iterator[_Body]:
        """Yield the branches of a node that decides, or the condition and the body of a loop."""
        for word in _BODIES:
            if word not in node.attr:
                continue
            several = node.attr[word].list.func
            named = {f"{word}_{place}": one.name for place, one in enumerate(several)}
            for label, name in (named or {word: node.attr[word].func.name}).items():
                if name in self._functions:
                    yield _Body(label, name, first=_DECIDING[node.op])

    def _add(self, ops: list[Op], called: dict[str, list[_Body]], inside: tuple[str, ...]) -> None:
        for op in ops:
            self.ops.append(op)
            reads = [*op.reads]
            for body in called.get(op.name, ()):
                name = body.function
                if name in inside or len(inside) >= _MOST_DEPTH or len(self.ops) > self._most:
                    self.left[name] = None
                elif body.label:
                    prefix = f"{op.name}/{body.label}/"
                    op.reads += self._expand(prefix, name, reads[body.first :], inside).values()
                else:
                    op.function = True
                    self._means[op.name] = self._expand(f"{op.name}/", name, reads, inside)

    def _expand(
        self, prefix: str, name: str, given: list[Reference], inside: tuple[str, ...]
    ) -> dict[str, Reference]:
        """Add the body of a function; return what it gives, by the number of each result."""
        function = self._functions[name]
        for argument, reference in zip(function.signature.input_arg, given, strict=False):
            self._means[prefix + argument.name] = {"": reference}
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
        self._add(body, self._called(function.node_def, prefix), (*inside, name))
        return results

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
