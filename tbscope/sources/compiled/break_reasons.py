"""Reasons of graph breaks: the compiler's message in one line, and the line of the user's code."""

import re
from collections.abc import Iterable
from typing import Any

from tbscope.ir.graph import Source
from tbscope.messages import cut
from tbscope.sources.fx.source_lines import own_line

__all__ = ["function_name", "guard_text", "plain_name", "reason_text", "source_in"]

_MOST_REASON = 300
_RESUMED = re.compile(r"(?:torch_dynamo_resume_in_|__resume_at_\d+_)(.*?)(?:_at_(\d+))?")
_NUMBERED = re.compile(r"^\d+/\d+(?:_\d+)?: ")
_ANOTHER = re.compile(r"^\*\*\* While handling.*$", re.MULTILINE)
_EXPLAINED = re.compile(r"^\s*Explanation:\s*(.+)$", re.MULTILINE)


def function_name(name: str) -> str:
    """Return the name of a function; behind a break, the original name and the line.

    >>> function_name("forward"), function_name("torch_dynamo_resume_in_forward_at_12")
    ('forward', 'forward, from line 12')
    """
    resumed = _RESUMED.fullmatch(name)
    if resumed is None:
        return "lambda" if name == "<lambda>" else name
    line = f" from line {resumed[2]}" if resumed[2] else " behind a break"
    return f"{function_name(resumed[1])},{line}"


def reason_text(text: str) -> str:
    r"""Return the compiler's reason for a break in one line: the construct and the explanation.

    >>> reason_text("Failed to trace x\n  Explanation: it is odd.\n  Hint: none")
    'Failed to trace x: it is odd'
    """
    reasons = [_one_reason(part) for part in _ANOTHER.split(text)]
    return cut("; then ".join(filter(None, reasons)) or "no reason is told", _MOST_REASON)


def _one_reason(text: str) -> str:
    first = text.strip().partition("\n")[0].strip()
    if first.startswith("generic_jump"):
        # The compiler's term for `if`, `while` and `assert`.
        return "Data-dependent branching: Python decides by the value of a tensor"
    explained = _EXPLAINED.search(text)
    text_of_reason = first if explained is None else f"{first}: {explained[1]}"
    return " ".join(text_of_reason.split()).rstrip(".")


def guard_text(text: str) -> str:
    """Return the compiler's message of a guard that failed, without the line that set the guard.

    >>> guard_text("0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5")
    "tensor 'x' size mismatch at index 0. expected 4, actual 5"
    >>> guard_text("0/1: 2 <= x.size()[0] <= 9  # if x.shape[0] > 9:  # net.py:3 in forward")
    '2 <= x.size()[0] <= 9'
    """
    first = text.strip().partition("\n")[0].strip()
    guard = _NUMBERED.sub("", first).partition("  # ")[0]
    return cut(" ".join(guard.split()), _MOST_REASON)


def source_in(stack: Iterable[Any]) -> Source | None:
    """Return the innermost line of the user's code in a stack, whose innermost frame is last."""
    return own_line(
        (frame.filename, frame.lineno or 0, plain_name(frame.name))
        for frame in reversed(list(stack))
    )


def plain_name(name: str) -> str:
    """Return the name of a function, without the compiler's additions behind a break."""
    resumed = _RESUMED.fullmatch(name)
    return name if resumed is None else resumed[1]
