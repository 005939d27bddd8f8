"""Hyper-parameters: what a module's `extra_repr` tells of it, by name, and where its class is.

`extra_repr` is what a module prints between its brackets, `3, 8, kernel_size=(3, 3)`:
leading values in the order of its `__init__`, then names with values.
"""

import ast
import functools
import inspect
import linecache
import re
import sys
import warnings
from collections.abc import Iterator
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from tbscope.messages import without_addresses
from tbscope.sources.torch.calling.signatures import positional_in, signature_of

__all__ = ["class_source", "hyperparameters"]

_NAMED = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)\s*(.*)", re.DOTALL)
_SET = re.compile(r"\{[^{}]+\}")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_PLAIN = (bool, int, float, complex, str, type(None))
_MOST_TEXT = 1_000


def hyperparameters(module: torch.nn.Module) -> dict[str, Any]:
    """Return the hyper-parameters of a module by name, as its `extra_repr` tells them.

    Args:
        module: Any module; its `extra_repr` is called, and an error in it is passed on.
    Returns:
        A new dict of plain constants: `{"in_features": 3, "out_features": 8, "bias":
        True}`. A value that is no literal stands as its text. Free text stands under
        `extra_repr`.
    Raises:
        TypeError: `extra_repr` returned no text.
    """
    text = module.extra_repr()
    if not isinstance(text, str):
        raise TypeError(f"extra_repr() gave {type(text).__name__} instead of a str")
    text = str.__str__(text)
    if not text:
        return {}
    # The layers of a model are mostly alike.
    known = _PARSED.setdefault(type(module), {})
    if text not in known:
        # Equal modules have equal texts, in each process.
        text = _SET.sub(_in_order, without_addresses(text))
        if text not in known:
            known[text] = _parse(module, text) if text.strip() else {}
    return known[text].copy()


_PARSED: WeakKeyDictionary[type, dict[str, dict[str, Any]]] = WeakKeyDictionary()


def _parse(module: torch.nn.Module, text: str) -> dict[str, Any]:
    """Parse the text of an `extra_repr`; return it whole if it is not of the usual form."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for piece in _pieces(text):
        found = _NAMED.fullmatch(piece)
        if found:
            named[found[1]] = _constant(found[2])
        else:
            value = _constant(piece)
            if named or value is piece:
                return {"extra_repr": text}
            positional.append(value)
    names = _names_of(module, positional) if positional else ()
    if len(positional) > len(names):
        return {"extra_repr": text}
    return {**dict(zip(names, positional, strict=False)), **named}


def _pieces(text: str) -> Iterator[str]:
    """Split at the commas that stand in no bracket and no quotes."""
    awaited: list[str] = []
    begin = 0
    for at, char in enumerate(text):
        if awaited and char == awaited[-1]:
            awaited.pop()
        elif awaited and awaited[-1] in "'\"":
            continue
        elif char in _BRACKETS:
            awaited.append(_BRACKETS[char])
        elif char in "'\"" and not text[at - 1 : at].isalnum():  # No apostrophe in a word.
            awaited.append(char)
        elif char == "," and not awaited:
            yield text[begin:at].strip()
            begin = at + 1
    last = text[begin:].strip()
    if last:
        yield last


def _constant(text: str) -> Any:
    """Parse a text as a plain constant; return the text itself where it is not one."""
    value = text if len(text) > _MOST_TEXT else _evaluated(text)
    return value if _is_plain(value) else text


def _evaluated(text: str) -> Any:
    """Return the value of a literal; the text itself where it is none."""
    try:
        with warnings.catch_warnings():
            # Texts that are no Python at all may make its parser warn.
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _in_order(found: re.Match[str]) -> str:
    """Return the text of a set with its entries in order; of anything else as it is."""
    value = _evaluated(found[0])
    return f"{{{', '.join(sorted(map(repr, value)))}}}" if isinstance(value, set) else found[0]


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _names_of(module: torch.nn.Module, values: list[Any]) -> list[str]:
    """Name the leading values after the parameters of `__init__`.

    Where a class hands them on unnamed (`*args`), a class above it tells; of its
    parameters those are passed over that the module holds with another value.
    """
    inits = [vars(base)["__init__"] for base in type(module).__mro__ if "__init__" in vars(base)]
    for init in inits:
        signature = signature_of(init)
        names = [] if signature is None else positional_in(signature)[1:]
        if not names:
            continue
        if init is inits[0]:
            return names
        fitting = []
        for value in values:
            while names:
                name = names.pop(0)
                held = vars(module).get(name, value)
                if not _is_plain(held) or held == value:
                    fitting.append(name)
                    break
        return fitting
    return []


@functools.lru_cache(maxsize=4096)
def class_source(cls: type) -> tuple[str, int] | None:
    """Return the file and the line `class Name` where a class is defined; None if not known.

    `inspect.getsourcelines` parses the whole file for each of its classes, up to Python 3.12.
    """
    functions = [inspect.unwrap(held) for held in vars(cls).values()]
    codes = [
        function.__code__
        for function in functions
        if isinstance(function, FunctionType)
        and function.__module__ == cls.__module__
        # Made by dataclass.
        and not function.__code__.co_filename.startswith("<string")
    ]
    first = min((code.co_firstlineno for code in codes), default=None)
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None and codes:
        file = codes[0].co_filename
    if file is None:
        return None
    begin = re.compile(rf"[ \t]*class[ \t]+{re.escape(cls.__name__)}\b")
    # Of several classes of one name, the one that stands right before its first method.
    lines = [
        number
        for number, line in enumerate(linecache.getlines(file), start=1)
        if cls.__name__ in line and begin.match(line) and (first is None or number < first)
    ]
    line = lines[-1] if lines else first
    return (file, line) if line else None
