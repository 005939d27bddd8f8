"""The modes of modules: in which they run until they are put back, and in which they were.

The training flag of a module is one of its attributes, and is put back with those.
"""

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["KeptModules"]

# What `DistributedDataParallel` asks whether to talk to the other processes, which may not be
# drawing: they would be waited for, and read what they are told as a step of training.
_ON_ITS_OWN = {"require_forward_param_sync": False, "require_backward_grad_sync": False}


class KeptModules:
    """Modules that run in another mode than the one that they had.

    Args:
        modes: By the identity of each module that is kept, the table from before that has its
            training flag.
        training: The mode in which modules run until they are put back; None for the
            one that each has.
    """

    def __init__(self, modes: Mapping[int, dict[str, Any]], training: bool | None = None) -> None:
        self._modes = modes
        self._training = training
        self._switched: set[int] = set()

    def switched(self, module: torch.nn.Module) -> bool:
        """Whether a module is in the mode of the run."""
        return id(module) in self._switched

    def switch_mode(self, module: torch.nn.Module) -> None:
        """Give a module, which is kept, the mode of the run; one that has it already stays so."""
        if id(module) in self._switched:
            return
        self._switched.add(id(module))
        table = module.__dict__
        if "require_forward_param_sync" in table:
            table.update(_ON_ITS_OWN)
        if self._training is None:
            return
        if "training" in table:
            table["training"] = self._training
        elif getattr(module, "training", self._training) != self._training:
            # A scripted one has its mode in C++; what `torch.compile` made, in another module.
            try:
                module.training = self._training
            except AttributeError:  # Its class has made it a constant.
                return

    def switch(self, root: torch.nn.Module) -> None:
        """Have a module switch itself and its children, from the modes before, as it would.

        Its own `train()` or `eval()` is called; where that raises, all keep the mode of the run.
        """
        assert self._training is not None
        held = [module for module in root.modules() if "training" in module.__dict__]
        for module in held:
            before = self._modes.get(id(module), {})
            module.__dict__["training"] = before.get("training", module.training)
        try:
            (root.train if self._training else root.eval)()
        except BaseException:
            for module in held:
                module.__dict__["training"] = self._training
            raise

    def stood_in_evaluation(self) -> bool:
        """Whether all were in evaluation before they were kept, so that their caller put them."""
        return all(before["training"] is False for before in self._modes.values())

    def note_mode(self, module: torch.nn.Module, training: bool) -> None:
        """Take note that another thread has given a kept module another mode, for good."""
        if id(module) in self._modes:
            self._modes[id(module)]["training"] = training
