"""What a model really does, by torch's own means: shares no code with tbscope.

Global module hooks tell which calls happened, in which order, with which results; a
dispatch mode under them, which call really ran an operation; autograd's graph, which
inputs and parameters reach which outputs; `named_modules`, what everything is called.
A fingerprint tells whether a model is what it was.
"""

import inspect
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    "Fingerprint",
    "RunFacts",
    "bind",
    "fingerprint",
    "idle_parameters",
    "moved_outputs",
    "observe",
    "reaching",
    "run_quietly",
    "same",
    "seeded",
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
            for name, value in vars(leaf).items():
                if not isinstance(value, str | int | float | bool | None):
                    yield from _tensors_in(value, f"{here}.{name}" if here else name, seen)


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

    def after(module: torch.nn.Module, _: Any, __: Any, result: Any) -> None:
        fact = stack.pop()
        places.pop()
        flat = pytree.tree_leaves(result)
        fact.results = [tensor_fact(leaf) for leaf in flat if isinstance(leaf, torch.Tensor)]

    watch = _Operations(stack)
    handles = [
        torch_module.register_module_forward_pre_hook(before),
        torch_module.register_module_forward_hook(after, with_kwargs=True, always_call=True),
    ]
    try:
        with torch.no_grad():
            result = run_quietly(model, args, kwargs, training, watch)
    finally:
        for handle in handles:
            handle.remove()
    outputs = [(path, tensor_fact(tensor)) for path, tensor in tensors_in(result)]
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


# -- dependencies ---------------------------------------------------------------------------


def reaching(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool
) -> list[tuple[str, set[str], set[frozenset[str]]]]:
    """Tell what autograd says that each output depends on.

    Returns:
        For each output tensor: its path; the paths of the inputs that reach it; the
        parameters that do, each as the set of its qualified names.
    """
    try:
        return _reaching(model, args, kwargs, training, copied=True)
    except RuntimeError as error:
        if "leaf variables" not in str(error):
            raise
        # A model that sets requires_grad on its input wants a leaf.
        return _reaching(model, args, kwargs, training, copied=False)


def _reaching(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool, *, copied: bool
) -> list[tuple[str, set[str], set[frozenset[str]]]]:
    leaves: dict[int, str] = {}
    kept: list[torch.Tensor] = []

    def graded(path: str, tensor: torch.Tensor) -> torch.Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        leaf = tensor.detach().clone().requires_grad_()
        leaves[id(leaf)] = path
        kept.append(leaf)
        # Models that write into their inputs may not write into a leaf.
        return leaf.clone() if copied else leaf

    bound = bind(model, args, kwargs)
    by_path = {id(tensor): path for path, tensor in tensors_in(bound)}

    def exchange(nest: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda t: graded(by_path[id(t)], t), nest)

    parameters: dict[int, set[str]] = {}
    named = model.named_parameters(remove_duplicate=False) if hasattr(model, "modules") else ()
    for name, parameter in named:
        parameters.setdefault(id(parameter), set()).add(name)
    with torch.enable_grad():
        result = run_quietly(model, exchange(args), exchange(dict(kwargs)), training)
    found = []
    for path, tensor in tensors_in(result):
        reached = _leaves_of(tensor)
        found.append(
            (
                path,
                {leaves[identity] for identity in reached if identity in leaves},
                {frozenset(parameters[i]) for i in reached if i in parameters},
            )
        )
    return found


def _leaves_of(tensor: torch.Tensor) -> set[int]:
    """Walk autograd's graph from a tensor; give the ids of the leaves that it reaches."""
    if tensor.grad_fn is None:
        return {id(tensor)} if tensor.requires_grad else set()
    reached: set[int] = set()
    seen = {tensor.grad_fn}
    pending = [tensor.grad_fn]
    while pending:
        function = pending.pop()
        variable = getattr(function, "variable", None)
        if variable is not None:
            reached.add(id(variable))
        for following, _ in function.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    return reached


def moved_outputs(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool
) -> dict[str, set[str]]:
    """Tell by trial which outputs depend on which integer and boolean inputs.

    Returns:
        For each such input, the paths of the outputs whose values move, and keep their
        shape, when its values are shifted; nothing for one with which the model raises.
    """

    def outputs(shifted: torch.Tensor | None) -> dict[str, torch.Tensor]:
        def exchange(nest: Any) -> Any:
            return pytree.tree_map_only(
                torch.Tensor,
                lambda t: _shifted(t) if t is shifted else t.clone(),
                nest,
            )

        with torch.no_grad():
            result = run_quietly(model, exchange(args), exchange(dict(kwargs)), training)
        return dict(tensors_in(result))

    first = outputs(None)
    moved: dict[str, set[str]] = {}
    for path, tensor in tensors_in(bind(model, args, kwargs)):
        if tensor.is_floating_point() or tensor.is_complex() or not tensor.numel():
            continue
        try:
            now = outputs(tensor)
        except Exception:  # noqa: BLE001, S112  (A value that the model refuses proves nothing.)
            continue
        moved[path] = _moved(first, now)
    return moved


def _shifted(tensor: torch.Tensor) -> torch.Tensor:
    """Give other values of the same kind: the same ones in other places, or a last zero."""
    rolled = tensor.roll(1, -1) if tensor.dim() else tensor
    if torch.equal(rolled, tensor):
        rolled = tensor.clone()
        rolled.view(-1)[-1] = 0
    return rolled


def _moved(first: dict[str, torch.Tensor], now: dict[str, torch.Tensor]) -> set[str]:
    return {
        path
        for path, tensor in now.items()
        if path in first and first[path].shape == tensor.shape and not same(first[path], tensor)
    }


def idle_parameters(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    names: Iterable[str],
    *,
    training: bool,
) -> list[str]:
    """Tell by trial which of these parameters move no output when their values change."""

    def outputs() -> dict[str, torch.Tensor]:
        copies = pytree.tree_map_only(torch.Tensor, torch.clone, (args, dict(kwargs)))
        with torch.no_grad():
            return dict(tensors_in(run_quietly(model, *copies, training)))

    first = outputs()
    idle = []
    for name in names:
        parameter = model.get_parameter(name)
        value = parameter.detach().clone()
        noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            parameter.add_(noise.to(value.dtype))
            try:
                if not _moved(first, outputs()):
                    idle.append(name)
            except Exception:  # noqa: BLE001, S110  (What makes the model raise is not idle.)
                pass
            finally:
                parameter.copy_(value)
    return idle


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


# -- what a model is ------------------------------------------------------------------------


@dataclass
class Fingerprint:
    """What a model and its process are at one moment, by what it is called."""

    facts: dict[str, Any]
    values: dict[str, torch.Tensor]
    kept: list[Any]
    """The objects whose ids are in `facts`, so that no new object gets one of these."""

    def differences(self, other: "Fingerprint") -> list[str]:
        """Name what is not as it was."""
        found = [
            f"{key}: {self.facts.get(key, 'absent')!r:.80} -> {other.facts.get(key, 'absent')!r:.80}"
            for key in {**self.facts, **other.facts}
            if self.facts.get(key, "absent") != other.facts.get(key, "absent")
        ]
        for name, value in self.values.items():
            now = other.values.get(name)
            if now is not None and not same(value, now):
                found.append(f"value of {name}")
        return found


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors hold the same values; NaN equals itself."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    equal = one == two
    return bool((equal | ((one != one) & (two != two))).all()) if one.numel() else True  # noqa: PLR0124


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)


def fingerprint(model: Any, inputs: Any = ()) -> Fingerprint:
    """Tell all of a model, its inputs and its process that a trace must not change."""
    facts: dict[str, Any] = {
        "rng torch": bytes(torch.get_rng_state().numpy()),
        "rng numpy": repr(np.random.get_state()),  # noqa: NPY002
        "rng python": random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "module __call__": id(torch.nn.Module.__call__),
        "module forward": id(getattr(type(model), "forward", None)),
        "filters": len(warnings.filters),
    }
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks"):
        facts[name] = list(map(id, getattr(torch_module, name).values()))
    values: dict[str, torch.Tensor] = {}
    kept: list[Any] = []

    def tensor(key: str, value: torch.Tensor | None) -> None:
        kept.append(value)
        facts[f"identity of {key}"] = id(value)
        if value is None:
            return
        kept.append(value.grad)
        facts[f"version of {key}"] = value._version
        facts[f"flags of {key}"] = (value.requires_grad, id(value.grad), value.is_leaf)
        if not value.is_meta:
            values[key] = value.detach().clone()

    if isinstance(model, torch.nn.Module):
        for name, module in model.named_modules():
            facts[f"training of {name}"] = module.training
            facts[f"attributes of {name}"] = list(vars(module))
            facts[f"children of {name}"] = [(k, id(m)) for k, m in module._modules.items()]
            for hooks in _HOOKS:
                facts[f"{hooks} of {name}"] = [
                    (k, id(hook)) for k, hook in getattr(module, hooks, {}).items()
                ]
            for key, value in (*module._parameters.items(), *module._buffers.items()):
                tensor(f"{name}.{key}", value)
    for path, value in tensors_in(inputs):
        tensor(f"input {path}", value)
    return Fingerprint(facts, values, kept)
