"""What a model really does, by torch's own means: shares no code with tbscope.

Global module hooks tell which calls happened, in which order, with which results; a
dispatch mode under them, which operations ran in which call; `named_modules`, what
everything is called. Its neighbours are `dependencies` and `fingerprints`.
"""

import inspect
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as torch_module
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "CallFact",
    "RunFacts",
    "bind",
    "observe",
    "outputs_in",
    "run_quietly",
    "same",
    "seeded",
    "tensor_fact",
    "tensors_in",
]

TensorFact = tuple[tuple[int, ...], str]
"""The shape and dtype of a tensor."""


@dataclass
class CallFact:
    """One module call.

    Attributes:
        name: The module's first name in `named_modules()`; None where it has none.
        steps: (class, attribute) for each module from the root to it.
        class_name: The name of its class.
        leaf: Whether the module holds no other module.
        outer: The call around this one, by its place in the list; None for none.
        results: Shapes and dtypes of the tensors that it gave, as pytree finds them.
        operations: The ATen operations that ran in it and in no call inside it.
    """

    name: str | None
    steps: tuple[tuple[str, str | None], ...]
    class_name: str
    leaf: bool
    outer: int | None
    results: list[TensorFact] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)


@dataclass
class RunFacts:
    """One run.

    Attributes:
        calls: Its calls in the order in which they began.
        outputs: What came out, by path.
        outside: The ATen operations that ran in no call.
    """

    calls: list[CallFact]
    outputs: list[tuple[str, TensorFact]]
    outside: list[str]


def tensors_in(nest: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Give every tensor of a nest with its path, in the order of torch's pytree.

    What pytree takes for a leaf is opened where it is an object that holds tensors
    in its attributes (a key-value cache).
    """
    yield from _tensors_in(nest, path, set())


def _tensors_in(nest: Any, path: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    for keys, leaf in pytree.tree_flatten_with_path(nest)[0]:
        here = ".".join(filter(None, [path, *map(_key, keys)]))
        if isinstance(leaf, torch.Tensor):
            yield here, leaf
        elif _is_holder(leaf) and id(leaf) not in seen:
            seen.add(id(leaf))
            found = {
                name: [*_tensors_in(value, f"{here}.{name}" if here else name, seen)]
                for name, value in vars(leaf).items()
                if not isinstance(value, str | int | float | bool | None)
            }
            # How a cache works is no output, where its public attributes lead to tensors.
            public = any(held for name, held in found.items() if name[0] != "_")
            for name, held in found.items():
                if name[0] != "_" or not public:
                    yield from held


def outputs_in(result: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Give every tensor of a result with its path; `out.0` is the first of a plain tuple."""
    plain = isinstance(result, tuple | list) and not hasattr(result, "_fields")
    yield from tensors_in(result, "out" if plain or isinstance(result, torch.Tensor) else "")


def _key(key: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


def _is_holder(leaf: Any) -> bool:
    return (
        hasattr(leaf, "__dict__")
        and not isinstance(leaf, torch.nn.Module | type | torch.dtype | torch.device)
        and not callable(leaf)
        and not hasattr(leaf, "model_type")
    )


def tensor_fact(tensor: torch.Tensor) -> TensorFact:
    """Give shape and dtype of a tensor."""
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


# -- runs -----------------------------------------------------------------------------------


@contextmanager
def seeded() -> Iterator[None]:
    """Begin with the same random numbers each time; put the generators back."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


@contextmanager
def _in_mode(model: Any, training: bool) -> Iterator[None]:
    """Set the flag of each module, and put flags and buffers back."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    flags = [module.training for module in modules]
    buffers = [
        (module, name, buffer, buffer._version, buffer.detach().clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    for module in modules:
        module.training = training
    try:
        yield
    finally:
        for module, flag in zip(modules, flags, strict=True):
            module.training = flag
        with torch.no_grad():
            for module, name, buffer, version, value in buffers:
                module._buffers[name] = buffer
                if buffer._version != version:
                    buffer.copy_(value)


def run_quietly(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
    watch: AbstractContextManager[Any] | None = None,
) -> Any:
    """Call a model in a mode, seeded, without warnings, under a watch if one is given."""
    with seeded(), _in_mode(model, training), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with watch or nullcontext():
            return model(*args, **kwargs)


class _Operations(TorchDispatchMode):
    """Notes each ATen operation with the innermost open call."""

    def __init__(self, stack: list[CallFact]) -> None:
        super().__init__()
        self.stack = stack
        self.outside: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "namespace", "") != "prim":
            place = self.stack[-1].operations if self.stack else self.outside
            place.append(str(func))
        return func(*args, **(kwargs or {}))


def observe(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool
) -> RunFacts:
    """Run a model without gradients and tell what happened."""
    names, steps = _names(model)
    calls: list[CallFact] = []
    stack: list[CallFact] = []
    places: list[int] = []

    def before(module: torch.nn.Module, _: Any) -> None:
        fact = CallFact(
            names.get(id(module)),
            steps.get(id(module), ()),
            type(module).__name__,
            not any(True for _ in module.children()),
            places[-1] if places else None,
        )
        places.append(len(calls))
        calls.append(fact)
        stack.append(fact)

    def after(module: torch.nn.Module, _: Any, result: Any) -> None:
        fact = stack.pop()
        places.pop()
        flat = pytree.tree_leaves(result)
        fact.results = [tensor_fact(leaf) for leaf in flat if isinstance(leaf, torch.Tensor)]

    watch = _Operations(stack)
    handles = [
        torch_module.register_module_forward_pre_hook(before),
        # Not with_kwargs, of which torch keeps a trace when the hook is removed.
        torch_module.register_module_forward_hook(after, always_call=True),
    ]
    try:
        with torch.no_grad():
            result = run_quietly(model, args, kwargs, training, watch)
    finally:
        for handle in handles:
            handle.remove()
    outputs = [(path, tensor_fact(tensor)) for path, tensor in outputs_in(result)]
    return RunFacts(calls, outputs, watch.outside)


def _names(model: Any) -> tuple[dict[int, str], dict[int, tuple[tuple[str, str | None], ...]]]:
    """Give name and steps of each module by its id."""
    if not isinstance(model, torch.nn.Module):
        return {}, {}
    names = {id(module): name for name, module in model.named_modules()}
    by_name = dict(model.named_modules(remove_duplicate=False))
    steps = {}
    for identity, name in names.items():
        attributes = name.split(".") if name else []
        above = [".".join(attributes[:depth]) for depth in range(1, len(attributes) + 1)]
        steps[identity] = (
            (type(model).__name__, None),
            *((type(by_name[n]).__name__, a) for n, a in zip(above, attributes, strict=True)),
        )
    return names, steps


def bind(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Give the arguments by the names of forward's parameters."""
    forward: Callable[..., Any] = model.forward if hasattr(model, "forward") else model
    signature = inspect.signature(forward)
    bound: dict[str, Any] = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            bound.update(value)
        else:
            bound[name] = value
    return bound


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors hold the same values; NaN equals itself."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    equal = one == two
    return bool((equal | ((one != one) & (two != two))).all()) if one.numel() else True  # noqa: PLR0124
