"""Names of modules and tensors in captured graphs, in the words of the model's user.

The compiler records expressions (`L['self']._modules['fc']._parameters['weight']`). They are
followed through the variables of the frame, and not evaluated.
"""

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from tbscope.sources.fx.state import state_of
from tbscope.sources.torch.compat.compiler import original_of
from tbscope.sources.torch.compat.modules import uncompiled
from tbscope.sources.torch.source_location import is_foreign_file

__all__ = ["FrameNames", "ModelNames", "modules_reached"]

_START = re.compile(r"(?:getattr\()*(?P<where>[LG])\[(?P<quote>['\"])(?P<name>.*?)(?P=quote)\]")
# An attribute that is no identifier is a call (`getattr(L['self'], 'a/b')`), or written as is.
_STEP = re.compile(
    r"\[(['\"])(?P<key>.*?)\1\]|\[(?P<index>-?\d+)\]|, (['\"])(?P<name>.*?)\4\)"
    r"|\.(?P<attribute>.+?)(?=[.\[]|, ['\"]|$)"
)
# Tables of a module through which the compiler reaches submodules and tensors.
_TABLES = frozenset({"_modules", "_parameters", "_buffers", "__dict__"})
# Attributes of partials and methods through which the compiler reaches their contents.
_REACHED = frozenset({"func", "args", "keywords", "__self__"})


@dataclass(slots=True)
class ModelNames:
    """Names of modules and tensors in the frames of a model.

    Attributes:
        root: The model, or None if it is a function.
        outside: The called modules outside of the model, by the paths that lead to them.
    """

    root: torch.nn.Module | None
    outside: dict[str, torch.nn.Module] = field(default_factory=dict)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the kinds and the tensors of the model's state, by name (see `state_of`)."""
        return state_of(self._own())

    def modules(self) -> dict[str, torch.nn.Module]:
        """Return the modules of the model by qualified name, and the modules found in variables."""
        return {**self._own(), **self.outside}

    def _own(self) -> dict[str, torch.nn.Module]:
        return {} if self.root is None else dict(self.root.named_modules(remove_duplicate=False))


class FrameNames:
    """Names of modules and tensors in one frame.

    Args:
        names: The names in the model.
        variables: The variables of the frame.
        globals_: The global variables of its file.
        around: The names of the variables of enclosing functions.
    """

    def __init__(
        self,
        names: ModelNames,
        variables: Mapping[str, object],
        globals_: Mapping[str, object],
        around: Collection[str],
    ) -> None:
        self._around = around
        self._outside = names.outside
        self._variables = {"L": variables, "G": globals_}
        # Reversed, so that the first of several names remains.
        self._modules = {
            id(module): name
            for name, module in reversed(list(names.modules().items()))
            if name not in names.outside
        }
        self._kinds, self._tensors = names.state()
        self._first = {id(tensor): name for name, tensor in reversed(self._tensors.items())}

    def state_name(self, tensor: object) -> tuple[str, str] | None:
        """Return the kind and the first name of a tensor of the model, or None."""
        name = self._first.get(id(tensor))
        return None if name is None else (self._kinds[name], name)

    def known(self, module: torch.nn.Module) -> str | None:
        """Return the qualified name of a module, or None for a module outside of the model."""
        return self._modules.get(id(uncompiled(module)))

    def module(self, text: str) -> str:
        """Return the qualified name of a module from the expression that leads to it."""
        path, _, value = self._walk(text)
        if _is_module(value) and self.known(value) is None:
            # A module outside of the model is recorded under its path.
            self._outside[path] = uncompiled(value)
        return path

    def path(self, text: str) -> tuple[str, bool]:
        """Return the path of a tensor from the expression that leads to it (`past.0.key`).

        Returns:
            The path, and whether the tensor existed before the call: in an attribute of a module, a
            global variable of the file, or a variable of an enclosing function.
        """
        return self._walk(text)[:2]

    def _walk(self, text: str) -> tuple[str, bool, Any]:
        start = _START.match(text)
        if start is None:
            # The compiler's own value: a size or another number.
            return ".".join(re.findall(r"\w+", text)) or "value", False, None
        value = self._variables[start["where"]].get(start["name"])
        module_name = self._known(value)
        steps = (
            [start["name"].lstrip("_") or start["name"]] if module_name is None else [module_name]
        )
        was_there = start["where"] == "G" or start["name"] in self._around or _is_module(value)
        for step in _STEP.finditer(text, start.end()):
            key = step["key"] or step["index"] or step["name"] or step["attribute"]
            if key in _TABLES:
                continue
            value = _part(value, key)
            module_name = self._known(value)
            steps = [*steps, key] if module_name is None else [module_name]
            was_there = was_there or _is_module(value)
        return ".".join(filter(None, steps)), was_there, value

    def _known(self, obj: Any) -> str | None:
        return self.known(obj) if _is_module(obj) else None


def _is_module(obj: object) -> bool:
    return isinstance(obj, torch.nn.Module)


def _part(container: Any, word: str) -> object:
    """Return an entry of a module, a partial, a method or a plain container, or None."""
    if _is_module(container):
        return uncompiled(container)._modules.get(word)
    if isinstance(container, functools.partial | MethodType):
        return getattr(container, word) if word in _REACHED else None
    if type(container) is dict:
        return container.get(word)
    if type(container) in (list, tuple) and word.lstrip("-").isdecimal():
        index = int(word)
        return container[index] if -len(container) <= index < len(container) else None
    return None


# Limit of the search: variables may lead to any number of objects.
_MOST_REACHED = 2000


def modules_reached(function: Callable[..., object]) -> list[torch.nn.Module]:
    """Return the modules that a callable, and the user's functions that it calls, can name.

    The search covers the contents of the callable, the variables of enclosing functions, and the
    global variables in its code, with the lists, tuples and mappings in all of these.
    """
    modules: dict[torch.nn.Module, None] = {}
    seen: set[int] = set()
    pending: list[Any] = [function]
    while pending and len(seen) < _MOST_REACHED:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            modules.update(dict.fromkeys(uncompiled(value).modules()))
        elif isinstance(value, functools.partial):
            pending += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, MethodType):
            pending += [value.__self__, value.__func__]
        elif isinstance(value, FunctionType):
            # Wrappers by `functools.wraps` and by the compiler lead to the function inside.
            pending += [getattr(value, "__wrapped__", None), original_of(value)]
            if not is_foreign_file(value.__code__.co_filename):
                pending += _variables_of(value)
        elif type(value) in (list, tuple, dict):
            pending += value.values() if type(value) is dict else value
    return list(modules)


def _variables_of(function: FunctionType) -> Iterator[object]:
    """Yield a function's default values, and the values of the variables that its code names."""
    yield from function.__defaults__ or ()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # The variable has no value yet.
            continue
    codes = [function.__code__]
    for code in codes:
        yield from map(function.__globals__.get, code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
