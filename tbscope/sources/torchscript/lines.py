"""The lines of the user's code from which a node of TorchScript comes, from its text."""

import functools
import re

from tbscope.ir.graph import Source
from tbscope.sources.programs.lines import own_line

__all__ = ["source_of"]

# Of a traced node each call around it, innermost first; of a scripted one its own line.
_TRACED = re.compile(r"^(.+?)\(([0-9]{1,9})\): (.+)$", re.MULTILINE)
_SCRIPTED = re.compile(r'^ *File "(.+?)", line ([0-9]{1,9})')
# What a file tells of its own copy of the code.
_COPY = "Serialized   File"


@functools.lru_cache(maxsize=4096)
def source_of(text: str, function: str) -> Source | None:
    """Return the innermost line of the user's code that a node tells of.

    Args:
        text: What TorchScript tells of the node.
        function: The function in whose code it is, where the text does not tell.
    Returns:
        The line that is not torch's, nor of Python's library; None where there is none.
    """
    text = text.partition(_COPY)[0]
    scripted = _SCRIPTED.match(text)
    return own_line([(scripted[1], scripted[2], function)] if scripted else _TRACED.findall(text))
