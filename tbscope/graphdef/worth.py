"""Worth: in which order an info card tells what it tells, and how it tells large numbers.

The page lists attributes by the bytes of their names, the largest first, and HTML shows no
blanks at the start of a line: a name with one blank stands behind all that have none. Blanks
are for what comes later; what it is, its shapes and what it was set to keep their names, by
which scripts read them.

Source: tensorboard/plugins/graph/tf_graph_info/tf-node-info.ts; upb prints maps in this order
"""

import math
import re
from typing import Any

from tbscope.figures.units import bytes_text, count_text, flops_text

__all__ = ["key_by_worth", "number_by_worth", "worth_of_number"]

# What comes behind all the rest, each step behind the one before.
_LATER = (
    ("parameters", "buffers", "parameter_count", "trainable_parameter_count"),
    ("flops",),
    ("flops_not_counted", "bytes"),
    (
        *("module", "call", "name", "operation", "operations", "kernels", "via", "then"),
        *("training", "source", "scope", "defined"),
    ),
)
_BLANKS = {name: " " * blanks for blanks, names in enumerate(_LATER, 1) for name in names}
_FORMS = {
    **dict.fromkeys(("flops", "backward_flops"), flops_text),
    **dict.fromkeys(("parameter_count", "trainable_parameter_count"), count_text),
    **dict.fromkeys(("bytes", "allocated_bytes", "peak_bytes", "at_peak_bytes"), bytes_text),
}
# Below it a number is as plain as its short form.
_LARGE = 10_000
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]{1,2})?")
_WHOLE = re.compile(r".*\(([0-9,]+)\)")


def key_by_worth(name: str) -> str:
    """Return the name of an attribute with as many blanks before it as it has to wait."""
    return _BLANKS.get(name, "") + name


def number_by_worth(name: str, number: int) -> int | str:
    """Return a large count or size so that it can be read: `4.34 G (4,338,130,944)`."""
    if number < _LARGE or name not in _FORMS:
        return number
    text = _FORMS[name](number)
    if text[-1].isalpha() and text[-2].isdigit():
        text = f"{text[:-1]} {text[-1]}"
    return f"{text} ({number:,})"


def worth_of_number(told: Any) -> float | None:
    """Return the number that an attribute tells, as `number_by_worth` wrote it; None for none.

    A number with many digits is a text, as 32 bits have no room for it.

    >>> worth_of_number(number_by_worth("flops", 4_338_130_944)), worth_of_number("a (text)")
    (4338130944, None)
    >>> worth_of_number("0.0654783062637"), worth_of_number("1e-09"), worth_of_number("inf")
    (0.0654783062637, 1e-09, None)
    """
    if type(told) is int:
        return told
    if isinstance(told, str) and _NUMBER.fullmatch(told):
        told = float(told)
    if type(told) is float:
        return told if math.isfinite(told) else None
    found = _WHOLE.fullmatch(told) if isinstance(told, str) else None
    return int(found[1].replace(",", "")) if found else None
