"""The lines of the user's code from which a node of TorchScript comes, from its text."""

import functools
import re

from tbscope.ir.graph import Source
from tbscope.sources.torch.locate import is_foreign_file, short_path

__all__ = ["source_of"]

# Of a traced node each call around it, innermost first; of a scripted one its own line.
_TRACED = re.compile(r"^(.+?)\(([0-9]{1,9})\): (.+)$", re.MULTILINE)
_SCRIPTED = re.compile(r'^ *File "(.+?)", line ([0-9]{1,9})')
# What a file tells of its own copy of the code.
_COPY = "Serialized   File"
# Longer ones are none that torch has written.
_MOST = 100_000


@functools.lru_cache(maxsize=4096)
def source_of(text: str, function: str) -> Source | None:
    """Return the innermost line of the user's code that a node tells of.

    Args:
        text: What TorchScript tells of the node.
        function: The function in whose code it is, where the text does not tell.
    Returns:
        The line that is not torch's, nor of Python's library; None where there is none.
    """
    text = text[:_MOST].partition(_COPY)[0]
    scripted = _SCRIPTED.match(text)
    found = [(*scripted.groups(), function)] if scripted else _TRACED.findall(text)
    for file, line, name in found:
        if not file.startswith("<") and not is_foreign_file(file):
            return Source(short_path(file), int(line), name)
    return None
