"""Rules on calls of functions of the library, of which the page draws copies in place.

Source: tensorboard/plugins/graph/tf_graph_common/render.ts (`buildSubhierarchy`,
`patchEdgesIntoFunctionInputs`, `patchEdgesFromFunctionOutputs`)
"""

from collections.abc import Iterator
from typing import Any

from tbscope.page.constants import ASIDE_OP
from tbscope.page.hierarchy import parse_input
from tbscope.page.ops import is_embedded
from tbscope.rules.reading import Fault, Reading, quote

__all__ = ["function_call"]

_IN_PLACE = "write the function's nodes in place, in a box named like the call"


def function_call(reading: Reading) -> Iterator[Fault]:
    """Find calls in forms that the page cannot draw, and those that it draws beside the flow."""
    signatures = {function.signature.name: function.signature for function in reading.functions}
    calls = {node.name: node for node in reading.nodes if node.op in signatures}
    if not calls:
        return
    bodies = {one.signature.name: {node.name for node in one.node_def} for one in reading.functions}
    ops = {node.name: node.op for node in reading.nodes}
    waited = {
        name for node in reading.nodes for name, control in map(parse_input, node.input) if control
    }
    drawn_late = _drawn_late(reading, calls)
    for name, node in calls.items():
        signature = signatures[node.op]
        what = _inputs(node, len(signature.input_arg), ops)
        what = what or _outputs(signature, bodies[node.op], reading.outputs_read.get(name))
        if not what and name in waited:
            what = "is waited for by another node, and the page fails"
        if what:
            yield Fault(name, f"the function {quote(node.op)} {what}", _IN_PLACE)
        elif name in drawn_late and signature.output_arg:
            yield Fault(
                name,
                f"the function {quote(node.op)} is called in a box of which no call is read at "
                "the top level, and is drawn beside the flow",
                f"have a {ASIDE_OP} at the top level read it",
            )


def _inputs(node: Any, wanted: int, ops: dict[str, str]) -> str:
    """Tell what is wrong with what a call reads; empty for nothing."""
    read = [parse_input(text) for text in node.input if text]
    data = [name for name, control in read if not control]
    if wanted and not data:
        return "is called without inputs, and the page fails"
    if len(data) != wanted:
        return f"is called with {len(data)} inputs and takes {wanted}: lines lead to wrong ones"
    if len(data) < len(read):
        return "waits for another node, and the page fails"
    if any(is_embedded(ops.get(name, "")) for name in data):
        return "reads what is drawn as a circle or an icon, and the page fails"
    return ""


def _outputs(signature: Any, body: set[str], asked: int | None) -> str:
    """Tell what is wrong with what a call gives; empty for nothing."""
    given = len(signature.output_arg)
    if asked is not None and asked >= given:
        return f"gives {given} outputs, output {asked} is read, and the page fails"
    for arg in signature.output_arg:
        if arg.name not in body:
            return f"has no node named like its output {quote(arg.name)}, and the page fails"
    return "" if body else "has an empty body, and the page fails"


def _drawn_late(reading: Reading, calls: dict[str, Any]) -> set[str]:
    """Return the calls for which the page makes copies only when it has put functions aside.

    It makes those of a box at once where a line of the top level begins in one of them.
    """
    early: set[str] = set()
    for node in reading.nodes:
        top = node.name.partition("/")[0]
        for text in node.input:
            name = parse_input(text)[0]
            if name in calls and name.partition("/")[0] != top:
                early.add(name.rpartition("/")[0])
    return {name for name in calls if "/" in name and name.rpartition("/")[0] not in early}
