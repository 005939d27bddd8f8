"""Names that programs and files record, read without torch: scopes of the user, and modules."""

import json
import re
from collections.abc import Iterable

_MARK = "tbscope.scope "
# Files may have any text: only what `json.dumps` writes of a text and two numbers is a mark.
_LINE = re.compile(
    "^" + _MARK + r"""(\["(?:[^"\\\0-\x1f]|\\["\\bfnrt]|\\u[0-9a-f]{4})+"(?:, [0-9]{1,9}){2}\])$""",
    re.MULTILINE,
)
_MOST_SCOPES = 100

LIST = "torch.nn.modules.container.ModuleList"
"""The full class name of a list of modules."""


def scope_mark(name: str, at: int, inside: int) -> str:
    """Return the line of a stack trace for a scope, as `scopes_in_trace` returns it."""
    return f"{_MARK}{json.dumps([name, at, inside])}"


def scopes_in_trace(trace: object) -> list[tuple[str, int, int]]:
    """Return the scopes of the user in the stack trace of a node, outermost first.

    Returns:
        For each scope its name; the number of nodes and open scopes before it, which separates
        scopes of one name; and the number of the module calls around the node that run in it.
    """
    if not isinstance(trace, str) or _MARK not in trace:
        return []
    return [tuple(json.loads(line)) for line in _LINE.findall(trace)[:_MOST_SCOPES]]


def container_class(names: Iterable[str], name: str) -> str:
    """Return the full class name that fits a module of which a source records only the name.

    Args:
        names: The qualified names of all modules.
        name: The qualified name of the module.
    Returns:
        `ModuleList` if all its children are numbered, else plain `Module`.
    """
    prefix = f"{name}."
    children = {
        other_name[len(prefix) :].partition(".")[0]
        for other_name in names
        if other_name.startswith(prefix)
    }
    if children and all(child.isdecimal() for child in children):
        return LIST
    return "torch.nn.modules.module.Module"
