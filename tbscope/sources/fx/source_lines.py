"""The lines of the user's code that a program tells of, from the text of its nodes."""

import functools
import re
from collections.abc import Iterable

from tbscope.ir.graph import Source
from tbscope.sources.torch.source_location import is_foreign_file, short_path

__all__ = ["own_line", "source_of", "source_of_script"]

_FRAME = re.compile(r'^ *File "(.*)", line ([0-9]{1,9}), in (.*)$', re.MULTILINE)
# Of a traced node each call around it, innermost first; of a scripted one its own line.
_TRACED = re.compile(r"^(.+?)\(([0-9]{1,9})\): (.+)$", re.MULTILINE)
_SCRIPTED = re.compile(r'^ *File "(.+?)", line ([0-9]{1,9})')
# What a file tells of its own copy of the code.
_COPY = "Serialized   File"


@functools.lru_cache(maxsize=4096)
def source_of(trace: str) -> Source | None:
    """Return the innermost line of the user's code in the text of a stack trace.

    Args:
        trace: As Python prints it, the innermost call last.
    Returns:
        The line that is not torch's, nor of Python's library; None where there is none.
    """
    return own_line(reversed(_FRAME.findall(trace)))


def own_line(lines: Iterable[tuple[str, str | int, str]]) -> Source | None:
    """Return the first line that is not torch's, nor of Python's library; None for none.

    Args:
        lines: The file, the number and the function of each.
    """
    for file, line, function in lines:
        if not file.startswith("<") and not is_foreign_file(file):
            return Source(short_path(file), int(line), function)
    return None


@functools.lru_cache(maxsize=4096)
def source_of_script(text: str, function: str) -> Source | None:
    """Return the innermost line of the user's code that a node of TorchScript tells of.

    Args:
        text: What TorchScript tells of the node.
        function: The function in whose code it is, where the text does not tell.
    Returns:
        The line that is not torch's, nor of Python's library; None where there is none.
    """
    text = text.partition(_COPY)[0]
    scripted = _SCRIPTED.match(text)
    return own_line([(scripted[1], scripted[2], function)] if scripted else _TRACED.findall(text))
