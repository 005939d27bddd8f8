"""What a run computes, as torch's own counter tells it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from tbscope.sources.torch.flops import FORMULAS
from tests.zoo.oracles import run_quietly

__all__ = ["counted_flops"]


def counted_flops(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool
) -> int:
    """Count the floating-point operations of one run.

    Torch has no formula for some kernels: it is given those of ours, which other tests hold
    against figures made by hand.
    """
    formulas = {}
    for name, formula in FORMULAS.items():
        namespace, label = name.split("::")
        packet = getattr(getattr(torch.ops, namespace), label, None)
        if packet is not None and packet not in flop_registry:
            formulas[packet] = _raw(formula)
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        run_quietly(model, args, kwargs, training)
    return int(counter.get_total_flops())


def _raw(formula: Any) -> Any:
    def count(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        return int(formula(args, kwargs, out_val)[0])

    count._get_raw = True  # type: ignore[attr-defined]
    return count
