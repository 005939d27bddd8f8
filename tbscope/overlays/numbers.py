"""Numbers as users pass them: checked, and turned into an int or a float."""

import math
from numbers import Integral, Real

from tbscope.drawing.figures import Number
from tbscope.errors import ArgumentError
from tbscope.words import error_text, shown

__all__ = ["plain_number"]

_MOST_CHARACTERS = 60
# Some of them still have a sum.
_LARGEST = 1e300


def plain_number(value: object, tag: str, name: str) -> Number | None:
    """Convert any kind of number to an int or a float; None stays None."""
    if value is None:
        return None
    given = value
    try:
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            # A tensor or an array that holds one number, unless it is on the device meta.
            value = value.item()
        plain = isinstance(value, Integral), isinstance(value, Real)
    except Exception as error:
        raise _no_number(tag, name, given, f"it holds no number: {error_text(error)}") from error
    if plain[0]:
        number: Number = int(value)  # type: ignore[call-overload]
    elif plain[1]:
        number = float(value)  # type: ignore[arg-type]
    else:
        raise _no_number(
            tag, name, given, "a number is an int, a float, or a tensor without dimensions"
        )
    # A whole number may be too large for a float, and so for the page.
    if number > _LARGEST or math.isnan(number):
        raise _no_number(tag, name, given, "the page cannot show what is not finite")
    if number < 0:
        raise _no_number(tag, name, given, "the page cannot show numbers below 0")
    return int(number) if number == int(number) else number


def _no_number(tag: str, name: str, value: object, why: str) -> ArgumentError:
    return ArgumentError(
        f"the overlay {shown(tag)} has {shown(value, _MOST_CHARACTERS)} for {name}",
        why=why,
        fix="give a finite number from 0 on (abs(x), x - smallest), or None for no number",
    )
