"""Hyper-parameters of modules by name, from `extra_repr`, and the source lines of classes.

`extra_repr` is the text that a module prints between its brackets, `3, 8, kernel_size=(3, 3)`:
leading values in the order of the parameters of `__init__`, then names with values. Classes outside
of torch declare further ones by annotations (`alpha: float`) and in `__constants__`.
"""

import ast
import functools
import inspect
import linecache
import re
import sys
import warnings
from collections.abc import Iterator
from enum import Enum
from types import FunctionType
from weakref import WeakKeyDictionary

import torch

from tbscope.messages import without_addresses
from tbscope.sources.torch.calling.signatures import positional_in, signature_of

_NAMED = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)\s*(.*)", re.DOTALL)
_SET = re.compile(r"\{[^{}]+\}")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_PLAIN = (bool, int, float, complex, str, type(None))
_MOST_TEXT = 1_000


def hyperparameters(module: torch.nn.Module) -> dict[str, object]:
    """Return the hyper-parameters of a module by name: printed ones, then declared ones.

    Args:
        module: Any module; its `extra_repr` is called, and an error in it is passed on.
    Returns:
        A new dict of plain constants: `{"in_features": 3, "out_features": 8, "bias": True}`.
        A value that is no literal is its text. A text of another form is under `extra_repr`.
    Raises:
        TypeError: `extra_repr` returned no text.
    """
    text = module.extra_repr()
    if not isinstance(text, str):
        raise TypeError(f"extra_repr() returned {type(text).__name__} instead of a str")
    settings = _printed(module, str.__str__(text)) if text else {}
    cls: type = type(module)
    for name, default in _declared(cls).items():
        value = vars(module).get(name, default)
        if isinstance(value, Enum | torch.dtype | torch.device):
            value = str(value)
        if not isinstance(value, list | dict | None) and is_plain(value):
            settings.setdefault(name, value)
    return settings


@functools.lru_cache(maxsize=4096)
def _declared(cls: type) -> dict[str, object]:
    """Return the public attributes that a class declares, each with its value in the class.

    The value is None where a base class declares an attribute by annotation: such values are flags
    of a framework more often than settings.
    """
    declared: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        # Layers of torch print the settings that matter.
        if base.__module__.partition(".")[0] != "torch":
            constants = vars(base).get("__constants__", ())
            kinds = inspect.get_annotations(base)
            for name in [*kinds, *constants]:
                if name[0] != "_" and "ClassVar" not in str(kinds.get(name)):
                    is_own = base is cls or name in constants
                    declared[name] = vars(base).get(name) if is_own else None
    return declared


def _printed(module: torch.nn.Module, text: str) -> dict[str, object]:
    """Return the hyper-parameters in the text of an `extra_repr`."""
    # Many layers of a model have equal texts, so the parsed texts are cached by class.
    parsed = _PARSED.setdefault(type(module), {})
    if text not in parsed:
        # Without addresses and with sets in order, equal modules have equal texts in each process.
        text = _SET.sub(_in_order, without_addresses(text))
        if text not in parsed:
            parsed[text] = _parse(module, text) if text.strip() else {}
    return parsed[text].copy()


_PARSED: WeakKeyDictionary[type, dict[str, dict[str, object]]] = WeakKeyDictionary()


def _parse(module: torch.nn.Module, text: str) -> dict[str, object]:
    """Parse the text of an `extra_repr`; a text of another form becomes one entry, `extra_repr`."""
    positional: list[object] = []
    keywords: dict[str, object] = {}
    for piece in _pieces(text):
        match = _NAMED.fullmatch(piece)
        if match:
            keywords[match[1]] = _constant(match[2])
        else:
            value = _constant(piece)
            if keywords or value is piece:
                return {"extra_repr": text}
            positional.append(value)
    names = _names_of(module, positional) if positional else ()
    if len(positional) > len(names):
        return {"extra_repr": text}
    return {**dict(zip(names, positional, strict=False)), **keywords}


def _pieces(text: str) -> Iterator[str]:
    """Yield the pieces of a text between commas outside of brackets and quotes."""
    closing: list[str] = []
    begin = 0
    for index, char in enumerate(text):
        if closing and char == closing[-1]:
            closing.pop()
        elif closing and closing[-1] in "'\"":
            continue
        elif char in _BRACKETS:
            closing.append(_BRACKETS[char])
        elif char in "'\"" and not text[index - 1 : index].isalnum():  # No apostrophe in a word.
            closing.append(char)
        elif char == "," and not closing:
            yield text[begin:index].strip()
            begin = index + 1
    last = text[begin:].strip()
    if last:
        yield last


def _constant(text: str) -> object:
    """Return the plain constant of a text, or the text itself if it is none or too long."""
    value = text if len(text) > _MOST_TEXT else _evaluated(text)
    return value if is_plain(value) else text


def _evaluated(text: str) -> object:
    """Return the value of a Python literal, or the text itself if it is none."""
    try:
        with warnings.catch_warnings():
            # Python's parser may warn about texts that are no Python.
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _in_order(match: re.Match[str]) -> str:
    """Return the text of a set with its entries sorted; any other text unchanged."""
    value = _evaluated(match[0])
    return f"{{{', '.join(sorted(map(repr, value)))}}}" if isinstance(value, set) else match[0]


def is_plain(value: object) -> bool:
    """Whether a value is a number, a text or None, or a plain container of these."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    return isinstance(value, _PLAIN)


def _names_of(module: torch.nn.Module, values: list[object]) -> list[str]:
    """Return the names of the leading values, from the parameters of `__init__`.

    If the class only passes on `*args`, the `__init__` of a base class has the names; parameters
    of the base that the module has as an attribute with another plain value are skipped.
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
                attribute = vars(module).get(name, value)
                if not is_plain(attribute) or attribute == value:
                    fitting.append(name)
                    break
        return fitting
    return []


@functools.lru_cache(maxsize=4096)
def class_source(cls: type) -> tuple[str, int] | None:
    """Return the file of a class and the number of its line `class Name`, or None if not found.

    If there is no such line, it is the line of the first method. `inspect.getsourcelines` would
    parse the whole file for each of its classes, up to Python 3.12.
    """
    functions = [inspect.unwrap(attribute) for attribute in vars(cls).values()]
    codes = [
        function.__code__
        for function in functions
        if isinstance(function, FunctionType)
        and function.__module__ == cls.__module__
        # The methods that `dataclass` generates are in no file.
        and not function.__code__.co_filename.startswith("<string")
    ]
    first = min((code.co_firstlineno for code in codes), default=None)
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None and codes:
        file = codes[0].co_filename
    if file is None:
        return None
    pattern = re.compile(rf"[ \t]*class[ \t]+{re.escape(cls.__name__)}\b")
    # If several classes have this name, the last one before the first method is the class.
    lines = [
        number
        for number, line in enumerate(linecache.getlines(file), start=1)
        if cls.__name__ in line and pattern.match(line) and (first is None or number < first)
    ]
    line = lines[-1] if lines else first
    return (file, line) if line else None
