"""Loads targets: a model from code or a config, with its inputs; or a graph from a log.

A model from a config of Hugging Face (`hf:NAME`, a directory, a file) has random weights. Nothing
is downloaded without `--download`, and no code from the hub runs.
"""

import ast
import contextlib
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tbscope.cli.parameters import HubConfig, InputSpec, ModelSpec
from tbscope.errors import ArgumentError
from tbscope.messages import cut, did_you_mean, error_text, first_of, shown

if TYPE_CHECKING:
    import torch


_SEE_WHERE = "add --debug to see where"


# -- code ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def import_path(target: ModelSpec) -> Iterator[None]:
    """Import from a target's folder, or the working directory, during a block."""
    before = list(sys.path)
    folder = Path(target.source).parent if target.is_file else Path()
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path[:] = before


def load_model(target: ModelSpec, arguments: Mapping[str, object]) -> "torch.nn.Module":
    """Return the model that a target names.

    Args:
        target: A module or file, and the name of a model in it, or of a function or class that
            makes a model.
        arguments: Keyword arguments of that function or class.
    Returns:
        The model.
    Raises:
        ArgumentError: The source cannot be imported, lacks the name, the factory raises,
            or its result is no `torch.nn.Module`.
    """
    import torch

    maker = _named(target)
    if isinstance(maker, torch.nn.Module):
        if arguments:
            raise ArgumentError(
                f"{target.attribute!r} in {target.source!r} takes no --arg",
                why=f"it is a model already, a {type(maker).__name__}, and no factory",
                fix="leave --arg out, or name the class or function that makes the model",
            )
        return maker
    model = _call_factory(maker, target, arguments)
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(
            f"{_call_text(target, arguments)} returned no model",
            why=f"it returned {shown(model)}, and a torch.nn.Module is needed",
            fix="name a function that returns the model, e.g. def make_model(): return Net()",
        )
    return model


def load_inputs(maker: ModelSpec) -> object:
    """Return the inputs that a function makes, or that are a value in a module.

    Args:
        maker: The module or file, and the name of the function or the inputs in it.
    Raises:
        ArgumentError: The source cannot be imported, lacks the name, or the function raises.
    """
    inputs = _named(maker)
    return _call_factory(inputs, maker, {}) if callable(inputs) else inputs


def load_loss(maker: ModelSpec) -> Callable[[object], Any]:
    """Return the function from the results of a model to a loss.

    Raises:
        ArgumentError: The source cannot be imported, lacks the name, or the value is not callable.
    """
    loss: Callable[[Any], Any] = _named(maker)
    if not callable(loss):
        raise ArgumentError(
            f"{maker.attribute!r} in {maker.source!r} makes no loss",
            why=f"it is a {type(loss).__name__}, and cannot be called",
            fix="name a function: def make_loss(results): return results.mean()",
        )
    return loss


def find_method(model: "torch.nn.Module", name: str, target: object) -> Callable[..., object]:
    """Return a method of a model, or of a submodule by a dotted name (`encoder.embed`).

    Raises:
        ArgumentError: The model has no method of that name.
    """
    method: Any = model
    fix = otherwise = "give the name of one: --method encode"
    for part in name.split("."):
        known = [attribute for attribute in dir(method) if not attribute.startswith("_")]
        fix = did_you_mean(part, known, otherwise, cutoff=0.6)
        method = getattr(method, part, None)
        if method is None:
            break
    if not callable(method):
        raise ArgumentError(
            f"{type(model).__name__} of {str(target)!r} has no method {name!r}",
            why="" if method is None else f"{name!r} is {shown(method)}",
            fix=fix if method is None else otherwise,
        )
    return method  # type: ignore[no-any-return]


def _import_source(target: ModelSpec) -> ModuleType:
    """Import the module or the file of a target; a file is imported once, for all of its names."""
    try:
        if target.is_file:
            return _import_file(Path(target.source))
        return importlib.import_module(target.source)
    except ArgumentError:
        raise
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        fix = _SEE_WHERE
        # The missing module is the target itself (or its package), not one that it imports.
        if missing and f"{target.source}.".startswith(f"{missing}."):
            fix = (
                "run tbscope in the folder that contains it, or give a file: "
                f"path/to/file.py:{target.attribute}"
            )
        elif "relative import" in str(error):
            fix = "give it as a module: package.module:make_model"
        raise ArgumentError(
            f"cannot import {target.source!r}", why=error_text(error), fix=fix
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
    # A file may have the name of a module that is loaded already (random.py).
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


def definitions_in(path: str) -> dict[str, str]:
    """Return the public names of a file of Python, each with its definition; nothing of it runs.

    Raises:
        ArgumentError: The file is no text in Python.
    """
    try:
        statements = ast.parse(Path(path).read_bytes()).body
    except (OSError, ValueError, SyntaxError) as error:
        raise ArgumentError(f"cannot read {path!r}", why=error_text(error)) from error
    found = {}
    for statement in statements:
        match statement:
            case ast.ClassDef() | ast.FunctionDef():
                names = [statement.name]
                statement.body, statement.decorator_list = [], []
            case ast.Assign():
                names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            case _:
                continue
        text = cut(ast.unparse(statement).rstrip(":"), 100)
        found.update({name: text for name in names if not name.startswith("_")})
    return found


def _named(target: ModelSpec) -> Any:
    """Return the object of a target: its attribute in its module or file."""
    if not target.attribute:
        names = [*definitions_in(target.source)]
        raise ArgumentError(
            f"{target.source!r} is a file of Python, and no model in it is named",
            why=f"it defines {first_of(names, 9)}" if names else "it defines nothing",
            fix=f"give the name of one: {target}{names[0] if names else 'NAME'}",
        )
    attribute: Any = _import_source(target)
    module = attribute
    for name in target.attribute.split("."):
        try:
            attribute = getattr(attribute, name)
        except AttributeError:
            otherwise = "give the name of a model, or of a function or class that makes one"
            raise ArgumentError(
                f"{target.source!r} has no {target.attribute!r}",
                why="" if attribute is module else f"{shown(attribute)} has no attribute {name!r}",
                fix=did_you_mean(name, dir(attribute), otherwise, cutoff=0.6),
            ) from None
        except (Exception, SystemExit) as error:
            # A lazy package imports the name only now.
            raise ArgumentError(
                f"{target.source!r} raised when it was asked for {name!r}",
                why=error_text(error),
                fix=_SEE_WHERE,
            ) from error
    return attribute


def _call_factory(
    factory: Callable[..., object], target: ModelSpec, arguments: Mapping[str, object]
) -> object:
    if not callable(factory):
        raise ArgumentError(
            f"{target.attribute!r} in {target.source!r} gives no model",
            why=f"it is {shown(factory)}",
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


def _call_text(target: ModelSpec, arguments: Mapping[str, object]) -> str:
    keywords = ", ".join(f"{name}={shown(value)}" for name, value in arguments.items())
    return f"{target.attribute}({keywords}) in {target.source!r}"


# -- configs of Hugging Face --------------------------------------------------------------------


def load_hub_model(
    target: HubConfig, arguments: Mapping[str, object], *, download: bool, meta: bool
) -> "torch.nn.Module":
    """Return a model with random weights, of the class that its config names.

    Args:
        target: The name of a config in the local cache, or the path of a config.
        arguments: Settings that override those of the config.
        download: Whether a config that is not in the cache may be downloaded.
        meta: Whether the weights are on the meta device, without memory.
    Raises:
        ArgumentError: transformers is not installed, the config is not found, or no model can
            be made from it.
    """
    import torch

    try:
        import transformers
    except ImportError as error:
        raise ArgumentError(
            f"{target} needs the package transformers",
            why=error_text(error),
            fix="pip install transformers",
        ) from error
    try:
        with _quiet():
            config: Any = transformers.AutoConfig.from_pretrained(
                target.name, local_files_only=not download, trust_remote_code=False, **arguments
            )
    except Exception as error:  # The hub and each config class raise their own errors.
        if not Path(target.name).exists() and not download and isinstance(error, OSError):
            raise ArgumentError(
                f"there is no config {target}",
                why="it is no path, and no model in the local cache",
                fix="add --download, or give the path of its config.json",
            ) from error
        raise ArgumentError(
            f"no config can be read from {target}",
            why=error_text(error),
            fix="give a config.json that transformers wrote, or the directory of one",
        ) from error
    named = (getattr(transformers, name, None) for name in config.architectures or ())
    make = next(filter(None, named), transformers.AutoModel.from_config)
    try:
        with _quiet(), torch.device("meta") if meta else contextlib.nullcontext():
            model: torch.nn.Module = make(config)
    except Exception as error:  # Each model class checks its config with its own errors.
        raise ArgumentError(
            f"no model can be made of {target}",
            why=error_text(error),
            fix="set what does not fit with --arg NAME=VALUE; add --debug to see where",
        ) from error
    return model


def example_input(model: Any) -> "torch.Tensor | None":
    """Return a blank image for a model of images; None for others, which have dummy inputs."""
    import torch

    config = model.config
    if getattr(model, "main_input_name", "") != "pixel_values":
        return None
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return torch.zeros(1, getattr(vision, "num_channels", 3), height, width)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log of transformers, which repeats errors that are raised anyway."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


# -- inputs -------------------------------------------------------------------------------------


def make_inputs(
    specs: Sequence[InputSpec], model: object, *, seed: int, fake: bool = False
) -> "tuple[tuple[torch.Tensor, ...] | None, dict[str, torch.Tensor]]":
    """Return random tensors, which depend on the seed alone.

    Args:
        specs: The tensors to make, in order.
        model: The model, on whose device they are.
        seed: The seed of a separate generator; torch's global generator is not used.
        fake: Whether they are fake tensors, which take no memory.
    Returns:
        The positional arguments (None if `specs` is empty) and the keyword arguments.
    Raises:
        InputError: A tensor does not fit in memory.
    """
    import torch

    from tbscope.sources.torch.calling.bind import device_of
    from tbscope.sources.torch.calling.dummy_inputs import make_tensor, seeded

    generator = seeded(seed)
    positional, named = [], {}
    for spec in specs:
        dtype: torch.dtype = getattr(torch, spec.dtype)
        tensor = make_tensor(spec.shape, dtype, generator, device=device_of(model), fake=fake)
        if spec.name is None:
            positional.append(tensor)
        else:
            named[spec.name] = tensor
    return (tuple(positional) if specs else None), named
