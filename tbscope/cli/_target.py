"""Gets the model that a target names: imports its place, calls its factory."""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tbscope.cli._parameters import ModelSpec
from tbscope.errors import ArgumentError
from tbscope.words import did_you_mean, error_text, shown

if TYPE_CHECKING:
    import torch

__all__ = ["find_method", "import_path", "load_inputs", "load_loss", "load_model"]

_SEE_WHERE = "add --debug to see where"


@contextlib.contextmanager
def import_path(target: ModelSpec) -> Iterator[None]:
    """Make a target's neighbours importable: its file's folder, or the working directory."""
    before = list(sys.path)
    folder = Path(target.place).parent if target.is_file else Path()
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path[:] = before


def load_model(target: ModelSpec, arguments: Mapping[str, Any]) -> "torch.nn.Module":
    """Return the model that a target names.

    Args:
        target: A module or file, and in it a model, or a function or class that makes one.
        arguments: Keyword arguments of that function or class.
    Returns:
        The model.
    Raises:
        ArgumentError: The place cannot be imported, holds no such name, the factory raises,
            or the object made is no `torch.nn.Module`.
    """
    import torch

    found = _find_attribute(_import_place(target), target)
    if isinstance(found, torch.nn.Module):
        if arguments:
            raise ArgumentError(
                f"{target.attribute!r} in {target.place!r} takes no --arg",
                why=f"it is a model already, a {type(found).__name__}, and no factory",
                fix="leave --arg out, or name the class or function that makes the model",
            )
        return found
    model = _call_factory(found, target, arguments)
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(
            f"{_call_text(target, arguments)} gave no model",
            why=f"it gave {_kind(model)} where a torch.nn.Module is needed",
            fix="name a function that returns the model, e.g. def make_model(): return Net()",
        )
    return model


def load_inputs(maker: ModelSpec) -> Any:
    """Return the inputs that a function makes, or those of a name.

    Args:
        maker: The place, and in it the function or the inputs.
    Raises:
        ArgumentError: The place cannot be imported, has no such name, or the function raises.
    """
    found = _find_attribute(_import_place(maker), maker)
    return _call_factory(found, maker, {}) if callable(found) else found


def load_loss(maker: ModelSpec) -> Callable[[Any], Any]:
    """Return the function of a name, which makes a loss of the results of a model.

    Raises:
        ArgumentError: The place cannot be imported, has no such name, or that is no function.
    """
    found: Callable[[Any], Any] = _find_attribute(_import_place(maker), maker)
    if not callable(found):
        raise ArgumentError(
            f"{maker.attribute!r} in {maker.place!r} makes no loss",
            why=f"it is {_kind(found)}, and cannot be called",
            fix="name a function: def make_loss(results): return results.mean()",
        )
    return found


def find_method(model: "torch.nn.Module", name: str, target: object) -> Callable[..., Any]:
    """Return a method of a model, dotted for one of a part of it (`encoder.embed`).

    Raises:
        ArgumentError: There is none of that name.
    """
    found: Any = model
    fix = otherwise = "give the name of one: --method encode"
    for part in name.split("."):
        known = [one for one in dir(found) if not one.startswith("_")]
        fix = did_you_mean(part, known, otherwise, cutoff=0.6)
        found = getattr(found, part, None)
        if found is None:
            break
    if not callable(found):
        raise ArgumentError(
            f"{type(model).__name__} of {str(target)!r} has no method {name!r}",
            why="" if found is None else f"{name!r} is {_kind(found)}",
            fix=fix if found is None else otherwise,
        )
    return found  # type: ignore[no-any-return]


def _import_place(target: ModelSpec) -> ModuleType:
    """Import the module or the file of a target; a file is imported once, for all of its names."""
    try:
        if target.is_file:
            return _import_file(Path(target.place))
        return importlib.import_module(target.place)
    except ArgumentError:
        raise
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        fix = _SEE_WHERE
        # Whether it is the module asked for that is missing, or one that it imports.
        if missing and f"{target.place}.".startswith(f"{missing}."):
            fix = (
                "run tbscope in the folder that holds it, or give a file: "
                f"path/to/file.py:{target.attribute}"
            )
        elif "relative import" in str(error):
            fix = "give it as a module: package.module:make_model"
        raise ArgumentError(
            f"cannot import {target.place!r}", why=error_text(error), fix=fix
        ) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ArgumentError(
            f"there is no file {str(path)!r}", fix="check the path before the colon of TARGET"
        )
    origin = str(path.resolve())
    for module in list(sys.modules.values()):
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.origin == origin:
            return module
    # A file may be called like a module that is loaded already (random.py).
    name = path.stem if path.stem not in sys.modules else f"target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, origin)
    if spec is None or spec.loader is None:
        raise ArgumentError(
            f"cannot import {str(path)!r}",
            why="its name does not end in .py",
            fix="give a Python file, or a module's name: package.module:make_model",
        )
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their module up by its name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _find_attribute(module: ModuleType, target: ModelSpec) -> Any:
    found: Any = module
    for name in target.attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            otherwise = "give the name of a model, or of a function or class that makes one"
            raise ArgumentError(
                f"{target.place!r} has no {target.attribute!r}",
                why="" if found is module else f"{_kind(found)} has no attribute {name!r}",
                fix=did_you_mean(name, dir(found), otherwise, cutoff=0.6),
            ) from None
        except (Exception, SystemExit) as error:
            # A lazy package loads it only now.
            raise ArgumentError(
                f"{target.place!r} raised when it was asked for {name!r}",
                why=error_text(error),
                fix=_SEE_WHERE,
            ) from error
    return found


def _call_factory(
    factory: Callable[..., object], target: ModelSpec, arguments: Mapping[str, Any]
) -> object:
    if not callable(factory):
        raise ArgumentError(
            f"{target.attribute!r} in {target.place!r} gives no model",
            why=f"it is {_kind(factory)}",
            fix="name a model, or a function or class that makes one",
        )
    try:
        return factory(**arguments)
    except (Exception, SystemExit) as error:
        raise ArgumentError(
            f"{_call_text(target, arguments)} raised",
            why=error_text(error),
            fix=f"give what it needs as --arg NAME=VALUE, or {_SEE_WHERE}",
        ) from error


def _call_text(target: ModelSpec, arguments: Mapping[str, Any]) -> str:
    given = ", ".join(f"{name}={shown(value)}" for name, value in arguments.items())
    return f"{target.attribute}({given}) in {target.place!r}"


def _kind(thing: object) -> str:
    if isinstance(thing, ModuleType):
        return f"the module {thing.__name__!r}"
    if isinstance(thing, type):
        return f"the class {thing.__name__!r}"
    return "None" if thing is None else f"an object of type {type(thing).__name__!r}"
