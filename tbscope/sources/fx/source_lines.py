"""Lines of the user's code, from the stack traces in the nodes of a program."""

import functools
import re
from collections.abc import Iterable

from tbscope.ir.graph import Source
from tbscope.sources.torch.source_location import is_foreign_file, short_path

__all__ = ["own_line", "source_of", "source_of_script"]

_FRAME = re.compile(r'^ *File "(.*)", line ([0-9]{1,9}), in (.*)$', re.MULTILINE)
# A traced node lists its enclosing calls, innermost first; a scripted node has only its own line.
_TRACED = re.compile(r"^(.+?)\(([0-9]{1,9})\): (.+)$", re.MULTILINE)
_SCRIPTED = re.compile(r'^ *File "(.+?)", line ([0-9]{1,9})')
# Heading of the lines in a file's own copy of the code.
_COPY = "Serialized   File"


@functools.lru_cache(maxsize=4096)
def source_of(trace: str) -> Source | None:
    """Return the innermost line of the user's code in a stack trace.

    Args:
        trace: The text of Python, with the innermost call last.
    Returns:
        The line, or None if all lines are of torch or of Python's library.
    """
    return own_line(reversed(_FRAME.findall(trace)))


def own_line(lines: Iterable[tuple[str, str | int, str]]) -> Source | None:
    """Return the first line that is not of torch or of Python's library, or None.

    Args:
        lines: The file, the number and the function of each line.
    """
    for file, line, function in lines:
        # A program of another machine has the paths of its torch.
        is_torch = "site-packages/torch/" in file or is_foreign_file(file)
        if not file.startswith("<") and not is_torch:
            return Source(short_path(file), int(line), function)
    return None


@functools.lru_cache(maxsize=4096)
def source_of_script(text: str, function: str) -> Source | None:
    """Return the innermost line of the user's code for a node of TorchScript.

    Args:
        text: The source range that TorchScript prints for the node.
        function: The function of the line, for a text that does not name it.
    Returns:
        The line, or None if all lines are of torch or of Python's library.
    """
    text = text.partition(_COPY)[0]
    scripted = _SCRIPTED.match(text)
    return own_line([(scripted[1], scripted[2], function)] if scripted else _TRACED.findall(text))
