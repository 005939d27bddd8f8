"""Texts of error messages: short forms of the caller's values, and suggestions of near names.

A value may be of any class, with a `repr` that raises or is huge: no function here raises, and
none returns more than a few lines.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Any

_MOST_SHOWN = 100
_MOST_ERROR = 500
_MOST_NAME = 200
# Python refuses to print numbers of more than 4,300 digits.
_MOST_BITS = 10_000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_ADDRESS = re.compile(r"(?: object)? at 0x[0-9a-fA-F]+")


def shown(value: object, most: int = _MOST_SHOWN, *, inside: bool = True) -> str:
    """Return any value on one line: its `repr`, cut if it is long.

    >>> shown("word"), shown("w" * 1000, most=8)
    ("'word'", "'wwwwwww...")

    An object whose `repr` raises is shown by its class; a list or tuple that contains it, by its
    entries.
    """
    if type(value) is int and value.bit_length() > _MOST_BITS:
        return f"an int of {value.bit_length()} bits"
    try:
        if type(value) is str or type(value) is bytes or type(value) is bytearray:
            text = repr(value[:most])
            text += "..." if len(value) > most else ""
        else:
            text = repr(value)
    except Exception as error:  # noqa: BLE001  The text names its class.
        if inside and type(value) in (list, tuple):
            entries: Any = value
            return cut(f"[{', '.join(shown(each, inside=False) for each in entries[:9])}]", most)
        return f"an object of class {type(value).__name__} (its repr raises {_class(error)})"
    return cut(text if text.isprintable() else " ".join(text.split()), most)


def text_of(value: object) -> str:
    """Return `str()` of anything, the size of a huge int, or the class if `str()` raises.

    >>> text_of(0.5), text_of(10**5000)
    ('0.5', 'an int of 16610 bits')
    """
    try:
        return str(value)
    except Exception:  # noqa: BLE001  The `__str__` of a user's class may raise anything.
        return shown(value) if type(value) is int else f"<{type(value).__qualname__}>"


def without_addresses(text: str) -> str:
    """Return a text without the addresses of objects, which differ from run to run.

    >>> without_addresses("act=<function gelu at 0x7f10>")
    'act=<function gelu>'
    """
    return _ADDRESS.sub("", text)


def cut(text: str, most: int) -> str:
    """Return a text of at most `most` characters; a longer text ends there, with three dots."""
    return text if len(text) <= most else f"{text[:most]}..."


def one_line(text: str) -> str:
    """Return a name on one line: a key of a user's dict may contain any character."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def printable(text: object, most: int) -> str:
    """Return a text for any terminal and file: cut to `most`, and escaped as in `visible`."""
    return visible(cut(text if type(text) is str else shown(text), most))


def visible(text: str) -> str:
    r"""Return a text with escapes for characters that a terminal obeys, or that reorder text.

    These are control characters except line ends and tabs, the marks of text direction, and lone
    surrogates. JSON has the same escapes, so JSON text stays the same data.

    >>> visible("red \x1b[31m, left \u202e")
    'red \\u001b[31m, left \\u202e'
    """
    return _OBEYED.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(*[iter(units)] * 2, strict=True))


def first_of(texts: Iterable[str], most: int) -> str:
    """Return the first texts, joined by commas, and the number of the remaining texts.

    >>> first_of(["a", "b"], 2), first_of("abcde", 2)
    ('a, b', 'a, b and 3 more')
    """
    listed = list(texts)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more:,} more" if more > 0 else "")


def error_text(error: BaseException) -> str:
    """Return an error on one line, without colours: `RuntimeError: the message`."""
    try:
        text = " ".join(_COLOUR.sub("", str(error)).split())
    except Exception as other:  # noqa: BLE001  The text names its class.
        text = f"(its message cannot be read: str() of it raises {_class(other)})"
    text = cut(text, _MOST_ERROR)
    return f"{_class(error)}: {text}" if text else _class(error)


def near_names(
    name: object, known: Iterable[object], *, most: int = 3, cutoff: float = 0.4
) -> list[str]:
    """Return the known names that a misspelt name may mean, the nearest first."""
    if not isinstance(name, str):
        return []
    # The time of a comparison grows with the product of both lengths.
    names = [each for each in known if isinstance(each, str) and len(each) <= _MOST_NAME]
    return difflib.get_close_matches(str.__str__(name)[:_MOST_NAME], names, n=most, cutoff=cutoff)


def did_you_mean(
    name: object, known: Iterable[object], otherwise: str, *, cutoff: float = 0.4
) -> str:
    """Return the fix for an unknown name: the near names, or `otherwise` if there are none."""
    near = near_names(name, known, cutoff=cutoff)
    return f"did you mean {', '.join(map(repr, near))}?" if near else otherwise


def _class(error: BaseException) -> str:
    return cut(type(error).__name__, _MOST_NAME)


def tag_text(tag: str | None) -> str:
    """Return a tag as the page shows it: the graph of the run has no tag, and is `Default`."""
    return "Default" if tag is None else tag
