"""Units: short texts for counts, FLOPs, bytes and times."""

from collections.abc import Sequence

__all__ = ["bytes_text", "count_text", "duration_text", "flops_text"]

# Parameters are usually counted in billions (B), FLOPs in giga (G).
_COUNTS = ("", "k", "M", "B", "T")
_FLOPS = ("", "k", "M", "G", "T", "P", "E")
_BYTES = (" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB")
_MOST_FLOAT = 1e300


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
