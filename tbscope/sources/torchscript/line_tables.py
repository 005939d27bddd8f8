"""Looks at what tells the lines of code in a TorchScript file, one table for each file of code.

There are as many tables as classes of modules, and torch writes all of them in one form: this is
known by its bytes. Any other table is read as a pickle.
"""

import re
from typing import Any

from tbscope.sources.torchscript.pickles import DamagedError, Stub, check_nest, read_pickle

__all__ = ["check_lines"]

_FORM = "FORMAT_WITH_STRING_TABLE"
_LIST = "torch.jit._pickle.build_intlist"


def check_lines(content: bytes) -> set[str]:
    """Check what tells the lines of code, as any pickle, and that it names texts that it has.

    torch looks them up blindly.

    Args:
        content: The pickle.
    Returns:
        The names of the classes and functions that it names.
    Raises:
        DamagedError: It does not, or `check_pickle` would find something wrong.
    """
    if is_usual(content):
        return {_LIST}
    noted, named = read_pickle(content, {})
    check_nest(noted)
    _check_texts(noted)
    return named


def _check_texts(noted: Any) -> None:
    if type(noted) is not tuple or noted[:1] != (_FORM,):
        return
    try:
        _, texts, records = noted
        numbers = [
            number for _, ((own, file, _), *_), *_ in records for number in (*_numbers(own), file)
        ]
    except (TypeError, ValueError) as error:
        raise DamagedError(f"it tells lines in another way: {error}") from error
    odd = [each for each in numbers if type(each) is not int or not 0 <= each < len(texts)]
    if odd:
        raise DamagedError(f"it names text {odd[0]!r} of {len(texts):,}")


def _numbers(own: Any) -> Any:
    # torch writes a list of numbers as a call that makes one.
    return own.held[0] if isinstance(own, Stub) and own.held else own


# The form, opcode by opcode. Source: torch/csrc/jit/serialization/source_range_serialization.cpp
# and pickler.cpp. Texts are numbered by bytes here: more of them are read as a pickle.
_HEAD = b"\x80\x02X\x18\x00\x00\x00" + _FORM.encode() + b"q\x00"
_MOST_TEXTS = 250
_INT = rb"(?:K.|M..|J.{4})"
_GET = rb"h.|j.{4}"
_PUT = rb"q.|r.{4}"
# A record is (offset, (source, start, end), tag), a source ([texts], file, line). The list is
# made by a function, and that and the source may be ones that are remembered.
_RECORD = re.compile(
    rb"%(int)b(?:(?:ctorch\.jit\._pickle\nbuild_intlist\n(%(put)b)|(%(get)b))"
    rb"\(\]\(((?:K.)*)etRK(.)%(int)b\x87(%(put)b)|(%(get)b))%(int)b%(int)b\x87%(int)b\x87"
    % {b"int": _INT, b"put": _PUT, b"get": _GET},
    re.DOTALL,
)
_MARK, _TEXT = b"(X"


def is_usual(content: bytes) -> bool:
    """Tell whether a table has the form in which torch writes it, and names texts that it has.

    Its things are remembered one after the other, none anew. So what is named again is known.
    """
    try:
        return _ends(content, *_texts_of(content))
    except (IndexError, UnicodeDecodeError):
        return False


def _texts_of(content: bytes) -> tuple[int, int]:
    """Return how many texts a table has, and where they end; none where it has another form."""
    at = len(_HEAD)
    if not content.startswith(_HEAD):
        return 0, 0
    marked = content[at] == _MARK
    at += marked
    many = 0
    while content[at] == _TEXT:
        end = at + 5 + int.from_bytes(content[at + 1 : at + 5], "little")
        text = content[at + 5 : end]
        many += 1
        if content[end : end + 2] != b"q%c" % many or many > _MOST_TEXTS:
            return 0, 0
        if not text.isascii():
            text.decode()
        at = end + 2
    close = _close(many, marked=marked) + _put(many + 1)
    return (many, at + len(close)) if content.startswith(close, at) else (0, 0)


def _ends(content: bytes, many: int, at: int) -> bool:
    """Tell whether a table goes on with its records, from behind its texts to the end."""
    if not many:
        return False
    marked = content[at] == _MARK
    at += marked
    latest, count = many + 1, 0
    maker = b""
    sources: set[bytes] = set()
    while found := _RECORD.match(content, at):
        made, got, numbers, file, put, known = found.groups()
        if known is None:
            if made is not None:
                latest += 1
                maker = _get(latest)
            latest += 1
            if (
                (made or got) != (_put(latest - 1) if made else maker)
                or max(numbers[1::2], default=0) >= many
                or file[0] >= many
                or put != _put(latest)
            ):
                return False
            sources.add(_get(latest))
        elif known not in sources:
            return False
        count += 1
        at = found.end()
    return content[at:] == _close(count, marked=marked) + _put(latest + 1) + b"\x87."


def _close(count: int, *, marked: bool) -> bytes:
    """Return what makes a tuple of so many things; what nobody writes for none, or too many."""
    if marked:
        return b"t"
    return b"%c" % (0x84 + count) if 0 < count < 4 else b"\xff"


def _put(number: int) -> bytes:
    return b"q%c" % number if number < 256 else b"r" + number.to_bytes(4, "little")


def _get(number: int) -> bytes:
    return b"h%c" % number if number < 256 else b"j" + number.to_bytes(4, "little")
