"""Units: short texts for counts, FLOPs, bytes and times."""

import math
import re
from collections.abc import Iterable, Sequence

# Parameters are usually counted in billions (B), FLOPs in giga (G).
_COUNTS = ("", "k", "M", "B", "T")
_FLOPS = ("", "k", "M", "G", "T", "P", "E")
_BYTES = (" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB")
_MOST_FLOAT = 1e300
_MOST_NAMES = 1000


def count_text(number: int, units: Sequence[str] = _COUNTS) -> str:
    """Return a count in up to five characters: `9,408`, `25.6M`, `405B`."""
    return f"{number:,}" if abs(number) < 10_000 else _scaled(number, 1000, units)


def flops_text(number: int) -> str:
    """Return FLOPs in up to five characters: `960`, `4.09G`, `1.69P`."""
    return count_text(number, _FLOPS)


def bytes_text(size_bytes: int) -> str:
    """Return a size: `512 B`, `97.5 MiB`."""
    return f"{size_bytes} B" if size_bytes < 1024 else _scaled(size_bytes, 1024, _BYTES)


def duration_text(duration_us: float) -> str:
    """Return a time: `84.2 us`, `1.23 ms`, `2.10 s`."""
    return _scaled(duration_us, 1000, (" us", " ms", " s"))


def _scaled(number: float, base: int, units: Sequence[str]) -> str:
    if abs(number) > _MOST_FLOAT:
        # Sizes from a file can add up to more than a float can represent.
        return f"more than 1e300{units[-1]}"
    step = 0
    # A number that would round up to the next unit is written in the next unit.
    while step + 1 < len(units) and abs(number) >= base - 0.5:
        number /= base
        step += 1
    # Three significant digits.
    digits = next((some for some in (2, 1) if abs(round(number, some)) < 10 ** (3 - some)), 0)
    return f"{number:,.{digits}f}{units[step]}"


def counted(counts: Iterable[tuple[str, int]]) -> str:
    """Return names with their counts as text: `aten::mm x2, aten::add`."""
    return ", ".join([f"{name} x{times}" if times > 1 else name for name, times in counts])


def names_counted(text: str) -> list[str]:
    """Parse the names that `counted` wrote, each as often as counted, but at most 1,000 times.

    >>> names_counted(counted([("aten::mm", 2), ("aten::add", 1)]))
    ['aten::mm', 'aten::mm', 'aten::add']
    """
    names = []
    for entry in text.split(", "):
        name, _, times = entry.rpartition(" x")
        if name and times.isdecimal():
            names += [name] * min(int(times[:9]), _MOST_NAMES)
        else:
            names.append(entry)
    return names


# -- numbers of info cards ------------------------------------------------------------------------

_FORMS = {
    **dict.fromkeys(("flops", "backward_flops"), flops_text),
    **dict.fromkeys(("parameter_count", "trainable_parameter_count"), count_text),
    **dict.fromkeys(("bytes", "allocated_bytes", "peak_bytes", "at_peak_bytes"), bytes_text),
}
# A smaller number is as readable as its short form.
_LARGE = 10_000
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]{1,2})?")
_WHOLE = re.compile(r".*\(([0-9][0-9,]*)\)")


def number_by_worth(name: str, number: int) -> int | str:
    """Return a large count or size in readable form: `4.34 G (4,338,130,944)`."""
    if number < _LARGE or name not in _FORMS:
        return number
    text = _FORMS[name](number)
    if text[-1].isalpha() and text[-2].isdigit():
        text = f"{text[:-1]} {text[-1]}"
    return f"{text} ({number:,})"


def worth_of_number(value: object) -> float | None:
    """Parse the number of an attribute, as `number_by_worth` wrote it, or None if it has none.

    A number with many digits is stored as a text, as it does not fit in 32 bits.

    >>> worth_of_number(number_by_worth("flops", 4_338_130_944)), worth_of_number("a (text)")
    (4338130944, None)
    >>> worth_of_number("0.0654783062637"), worth_of_number("1e-09"), worth_of_number("inf")
    (0.0654783062637, 1e-09, None)
    """
    if type(value) is int:
        return value
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if type(value) is float:
        return value if math.isfinite(value) else None
    match = _WHOLE.fullmatch(value) if isinstance(value, str) else None
    return int(match[1].replace(",", "")) if match else None
