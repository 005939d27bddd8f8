"""What a model and its process are at one moment, to tell whether they stay so."""

import random
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as torch_module

from tests.zoo.oracles import same, tensors_in

__all__ = ["Fingerprint", "fingerprint"]


@dataclass
class Fingerprint:
    """What a model and its process are at one moment, by what it is called."""

    facts: dict[str, Any]
    values: dict[str, torch.Tensor]
    kept: list[Any]
    """The objects whose ids are in `facts`, so that no new object gets one of these."""

    def differences(self, other: "Fingerprint") -> list[str]:
        """Name what is not as it was."""
        found = []
        for key in {**self.facts, **other.facts}:
            was, now = (facts.get(key, "absent") for facts in (self.facts, other.facts))
            if was != now:
                found.append(f"{key}: {was!r:.80} -> {now!r:.80}")
        for name, value in self.values.items():
            later = other.values.get(name)
            if later is not None and not same(value, later):
                found.append(f"value of {name}")
        return found


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
