"""Names: what the compiler says of where something comes from, as the model's user would say it.

The compiler tells of expressions (`L['self']._modules['fc']._parameters['weight']`), which are
walked through the variables of the frame: nothing of them is evaluated.
"""

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from tbscope.sources.fx.state import state_of
from tbscope.sources.torch.compat.compiler import compiled_from
from tbscope.sources.torch.compat.modules import uncompiled
from tbscope.sources.torch.source_location import is_foreign_file

__all__ = ["FrameNames", "Names", "modules_reached"]

_START = re.compile(r"(?P<where>[LG])\[(?P<quote>['\"])(?P<name>.*?)(?P=quote)\]")
_STEP = re.compile(r"\[(['\"])(?P<key>.*?)\1\]|\[(?P<index>-?\d+)\]|\.(?P<attribute>\w+)")
# The tables of a module, through which the compiler reaches its parts.
_TABLES = frozenset({"_modules", "_parameters", "_buffers", "__dict__"})
# What partials and methods hold.
_REACHED = frozenset({"func", "args", "keywords", "__self__"})


@dataclass(slots=True)
class Names:
    """The names of modules and tensors in the frames of a model.

    Attributes:
        root: The model; None where it is a function.
        found: The modules of others that were called, by the paths that lead to them.
    """

    root: torch.nn.Module | None
    found: dict[str, torch.nn.Module] = field(default_factory=dict)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what each tensor of the model is, and the tensors, by name (see `state_of`)."""
        return state_of(self._own())

    def modules(self) -> dict[str, torch.nn.Module]:
        """Return the modules of the model, by qualified name, and those found in variables."""
        return {**self._own(), **self.found}

    def _own(self) -> dict[str, torch.nn.Module]:
        return {} if self.root is None else dict(self.root.named_modules(remove_duplicate=False))


class FrameNames:
    """The names in one frame.

    Args:
        names: Those of the model.
        variables: The frame's variables.
        globals_: Those of its file.
        around: The names of those that are of the function around it.
    """

    def __init__(
        self,
        names: Names,
        variables: Mapping[str, Any],
        globals_: Mapping[str, Any],
        around: Collection[str],
    ) -> None:
        self._around = around
        self._found = names.found
        self._variables = {"L": variables, "G": globals_}
        self._modules = {
            id(module): name
            for name, module in reversed(list(names.modules().items()))
            if name not in names.found
        }
        self._kinds, self._tensors = names.state()
        self._first = {id(held): name for name, held in reversed(self._tensors.items())}

    def held(self, tensor: Any) -> tuple[str, str] | None:
        """Return what a tensor of the model is, and its first name; None for any other."""
        name = self._first.get(id(tensor))
        return None if name is None else (self._kinds[name], name)

    def known(self, module: torch.nn.Module) -> str | None:
        """Return the qualified name of a module; None for one that the model does not hold."""
        return self._modules.get(id(uncompiled(module)))

    def module(self, text: str) -> str:
        """Return the qualified name of a module, from the expression that leads to it."""
        path, _, thing = self._walk(text)
        if _is_module(thing) and self.known(thing) is None:
            self._found[path] = uncompiled(thing)
        return path

    def path(self, text: str) -> tuple[str, bool]:
        """Return the path of a tensor, from the expression that leads to it (`past.0.key`).

        Returns:
            The path, and whether the tensor was there before the call: in an attribute of a
            module, in a variable of the file, or in one of the function around.
        """
        return self._walk(text)[:2]

    def _walk(self, text: str) -> tuple[str, bool, Any]:
        start = _START.match(text)
        if start is None:
            # What the compiler made itself: a size, a number of its own.
            return ".".join(re.findall(r"\w+", text)) or "value", False, None
        thing = self._variables[start["where"]].get(start["name"])
        known = self._known(thing)
        steps = [start["name"].lstrip("_") or start["name"]] if known is None else [known]
        was_there = start["where"] == "G" or start["name"] in self._around or _is_module(thing)
        for step in _STEP.finditer(text, start.end()):
            word = step["key"] or step["index"] or step["attribute"]
            if word in _TABLES:
                continue
            thing = _part(thing, word)
            known = self._known(thing)
            steps = [*steps, word] if known is None else [known]
            was_there = was_there or _is_module(thing)
        return ".".join(filter(None, steps)), was_there, thing

    def _known(self, thing: Any) -> str | None:
        return self.known(thing) if _is_module(thing) else None


def _is_module(thing: Any) -> bool:
    return isinstance(thing, torch.nn.Module)


def _part(thing: Any, word: str) -> Any:
    """Return the part of a module, or the entry of a plain container; None for anything else."""
    if _is_module(thing):
        return uncompiled(thing)._modules.get(word)
    if isinstance(thing, functools.partial | MethodType):
        return getattr(thing, word) if word in _REACHED else None
    if type(thing) is dict:
        return thing.get(word)
    if type(thing) in (list, tuple) and word.lstrip("-").isdecimal():
        at = int(word)
        return thing[at] if -len(thing) <= at < len(thing) else None
    return None


_MOST_REACHED = 2000


def modules_reached(function: Callable[..., Any]) -> list[torch.nn.Module]:
    """Return the modules that a callable, and the user's functions which it calls, can name.

    They are found in what it holds, in the variables of the functions around, and in those of its
    file that its code names; also in lists, tuples and mappings there.
    """
    found: dict[torch.nn.Module, None] = {}
    seen: set[int] = set()
    pending: list[Any] = [function]
    while pending and len(seen) < _MOST_REACHED:
        thing = pending.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.nn.Module):
            found.update(dict.fromkeys(uncompiled(thing).modules()))
        elif isinstance(thing, functools.partial):
            pending += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, MethodType):
            pending += [thing.__self__, thing.__func__]
        elif isinstance(thing, FunctionType):
            # What `functools.wraps` and the compiler put around a function lead to it.
            pending += [getattr(thing, "__wrapped__", None), compiled_from(thing)]
            if not is_foreign_file(thing.__code__.co_filename):
                pending += _variables_of(thing)
        elif type(thing) in (list, tuple, dict):
            pending += thing.values() if type(thing) is dict else thing
    return list(found)


def _variables_of(function: FunctionType) -> Iterator[Any]:
    """Yield what the variables hold that the code of a function names."""
    yield from function.__defaults__ or ()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # Nothing was bound to it so far.
            continue
    codes = [function.__code__]
    for code in codes:
        yield from map(function.__globals__.get, code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
