"""What each output of a model depends on, by autograd's graph and by trial."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.zoo.oracles import bind, outputs_in, run_quietly, same, tensors_in

__all__ = ["Dependency", "idle_parameters", "moved_outputs", "reaching"]


@dataclass(frozen=True)
class Dependency:
    """What reaches one output.

    Attributes:
        output: The path of the output tensor.
        inputs: The paths of the inputs.
        parameters: The parameters, each as the set of its qualified names.
    """

    output: str
    inputs: set[str]
    parameters: set[frozenset[str]]


def reaching(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool
) -> list[Dependency]:
    """Tell what autograd says that each output depends on."""
    for way in ("copies", "leaves", "parameters alone"):
        try:
            return _reaching(model, args, kwargs, training, way)
        except RuntimeError as error:
            # A model that sets requires_grad on its inputs wants leaves, or none at all.
            if "leaf variables" not in str(error) or way == "parameters alone":
                raise
    raise AssertionError


def _reaching(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool, way: str
) -> list[Dependency]:
    leaves: dict[int, str] = {}
    kept: list[torch.Tensor] = []

    def graded(path: str, tensor: torch.Tensor) -> torch.Tensor:
        if way == "parameters alone" or not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        leaf = tensor.detach().clone().requires_grad_()
        leaves[id(leaf)] = path
        kept.append(leaf)
        # Models that write into their inputs may not write into a leaf.
        return leaf.clone() if way == "copies" else leaf

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
    for path, tensor in outputs_in(result):
        reached = _leaves_of(tensor)
        found.append(
            Dependency(
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
        return dict(outputs_in(result))

    first = outputs(None)
    moved: dict[str, set[str]] = {}
    for path, tensor in tensors_in(bind(model, args, kwargs)):
        if tensor.is_floating_point() or tensor.is_complex() or not tensor.numel():
            continue
        try:
            now = outputs(tensor)
        except Exception:  # noqa: BLE001  (A value that the model refuses proves nothing.)
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
            return dict(outputs_in(run_quietly(model, *copies, training)))

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
            except Exception:  # noqa: BLE001  (What makes the model raise is not idle.)
                pass
            finally:
                parameter.copy_(value)
    return idle
