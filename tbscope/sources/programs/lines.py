"""The lines of the user's code that a program tells of, from the text of stack traces."""

import functools
import re
from collections.abc import Iterable

from tbscope.ir.graph import Source
from tbscope.sources.torch.locate import is_foreign_file, short_path

__all__ = ["own_line", "source_of"]

_FRAME = re.compile(r'^ *File "(.*)", line ([0-9]{1,9}), in (.*)$', re.MULTILINE)
# Longer ones are none that Python has written.
_MOST = 100_000


@functools.lru_cache(maxsize=4096)
def source_of(trace: str) -> Source | None:
    """Return the innermost line of the user's code in the text of a stack trace.

    Args:
        trace: As Python prints it, the innermost call last.
    Returns:
        The line that is not torch's, nor of Python's library; None where there is none.
    """
    return own_line(reversed(_FRAME.findall(trace[-_MOST:])))


def own_line(lines: Iterable[tuple[str, str | int, str]]) -> Source | None:
    """Return the first line that is not torch's, nor of Python's library; None for none.

    Args:
        lines: The file, the number and the function of each.
    """
    for file, line, function in lines:
        if not file.startswith("<") and not is_foreign_file(file):
            return Source(short_path(file), int(line), function)
    return None
