"""What a run may change in modules: attributes, classes, training flags.

Built to cost little per module: what most modules share (a dozen empty dicts of
hooks) is looked at as a whole, and copied only where it holds something.
"""

from itertools import filterfalse
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from tbscope.sources.eager.keep.kept_contents import KeptContents, Report
from tbscope.sources.eager.keep.kinds import PLAIN, kind_of, refill
from tbscope.sources.torch.module_internals import (
    ScriptModule,
    scripted_attributes,
    set_scripted_attribute,
)
from tbscope.sources.torch.nests import slots_of, tensor_leaves

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KeptModules"]

# What `DistributedDataParallel` asks whether to talk to the other processes, which may not be
# drawing: they would be waited for, and read what they are told as a step of training.
_ON_ITS_OWN = {"require_forward_param_sync": False, "require_backward_grad_sync": False}


class KeptModules:
    """Modules with their attributes as they were.

    Args:
        contents: Keeps what their attributes lead to.
        training: The mode in which modules run until they are put back; None for the
            one in which each stands.

    Attributes:
        tensors: Their parameters, buffers and tensors in attributes.
        forwards: The functions that run them, each with the class.
        hooks: The functions that run in their backward passes.
    """

    def __init__(self, contents: KeptContents, training: bool | None = None) -> None:
        self.tensors: list[torch.Tensor] = []
        self.forwards: list[tuple[Any, type]] = []
        self.hooks: list[Any] = []
        self._contents = contents
        self._training = training
        self._modules: list[tuple[Any, ...]] = []
        # By identity, what each had; it is held, so that its identity stays its own.
        self._before: dict[int, dict[str, Any]] = {}
        self._slotted: dict[type, bool] = {}
        self._switched: set[int] = set()
        self._modes: list[tuple[torch.nn.Module, bool]] = []
        self._attributes: list[tuple[torch.nn.Module, dict[str, Any]]] = []
        self._plans: dict[tuple[type, ...], _Plan] = {}

    def add(self, module: torch.nn.Module, *, switch: bool = True) -> None:
        """Keep one module as it is now, without its children.

        One that is kept already stays kept as it was first, and one that was switched already
        in the mode that it has.

        Args:
            module: The module.
            switch: Whether its mode is switched.
        """
        key = id(module)
        if key not in self._before:
            self._keep(module)
        if switch and key not in self._switched:
            self._switched.add(key)
            self._switch(module)

    def keeps(self, module: torch.nn.Module) -> bool:
        """Tell whether a module is kept."""
        return id(module) in self._before

    def switched(self, module: torch.nn.Module) -> bool:
        """Tell whether a module is kept, and has been switched."""
        return id(module) in self._switched

    def _keep(self, module: torch.nn.Module) -> None:
        attributes = module.__dict__
        before: dict[str, Any] = attributes.copy()
        self._before[id(module)] = before
        values = tuple(before.values())
        types = tuple(map(type, values))
        plan = self._plans.get(types)
        if plan is None:
            plan = self._plans[types] = _Plan(types)
        filled = []
        parameters: Any = before.get("_parameters")
        buffers: Any = before.get("_buffers")
        children: Any = before.get("_modules")
        containers = plan.containers(values)
        # Of a dozen in each module all but a few hold nothing.
        empty = [*filterfalse(None, containers)]
        for container in filter(None, containers):
            if container is parameters or container is buffers:
                self.tensors += [held for held in container.values() if held is not None]
            elif container is not children:
                self._contents.add(container)
                continue
            filled.append((container, container.copy()))
        for at in plan.others:
            other = values[at]
            # Most are tuples of numbers, such as the size of a kernel: nothing to change.
            if type(other) is not tuple or any(map(kind_of, map(type, other))):
                self._contents.add(other)
        for name in ("_backward_hooks", "_backward_pre_hooks"):
            self.hooks += (before.get(name) or {}).values()
        cls = type(module)
        if cls not in self._slotted:
            self._contents.add_class(cls)
            self.forwards.append((getattr(cls, "forward", None), cls))
            self._slotted[cls] = bool(slots_of(cls))
        if self._slotted[cls]:
            self._contents.add_slots(module)
        self._modules.append((module, cls, attributes, before, empty, filled))
        if isinstance(module, ScriptModule):
            self._keep_scripted(module)

    def _keep_scripted(self, module: torch.nn.Module) -> None:
        """Keep what a scripted module holds outside of Python."""
        self.tensors += module.parameters(recurse=False)
        self.tensors += module.buffers(recurse=False)
        held = scripted_attributes(module)
        self.tensors += [tensor for _, tensor in tensor_leaves(held, "")]
        # One that is frozen has no mode any more.
        training = held.pop("training", getattr(module, "training", None))
        if training is not None:
            self._modes.append((module, training))
        self._attributes.append((module, held))

    def _switch(self, module: torch.nn.Module) -> None:
        """Give a module the mode of the run."""
        before = self._before[id(module)]
        if "training" not in before:
            self._switch_elsewhere(module)
        elif self._training is not None:
            module.__dict__["training"] = self._training
        if "require_forward_param_sync" in before:
            module.__dict__.update(_ON_ITS_OWN)

    def _switch_elsewhere(self, module: torch.nn.Module) -> None:
        """Switch a module that holds its mode outside of its attributes.

        A scripted one holds it in C++; what `torch.compile` made, in the module that it wraps.
        """
        held = getattr(module, "training", None)
        if self._training is None or held is None or held == self._training:
            return
        try:
            module.training = self._training
        except AttributeError:  # Its class has made it a constant.
            return
        if not isinstance(module, ScriptModule):
            self._modes.append((module, held))

    def switch(self, root: torch.nn.Module) -> None:
        """Have a module switch itself and what it holds, from the modes before, as it would.

        Its own `train()` or `eval()` is called; where that raises, all keep the mode of the run.
        """
        assert self._training is not None
        held = [module for module in root.modules() if "training" in module.__dict__]
        for module in held:
            before = self._before.get(id(module), {})
            module.__dict__["training"] = before.get("training", module.training)
        try:
            (root.train if self._training else root.eval)()
        except BaseException:
            for module in held:
                module.__dict__["training"] = self._training
            raise

    def stood_in_evaluation(self) -> bool:
        """Tell whether all stood in evaluation before they were kept, so that somebody put them."""
        return all(before.get("training") is False for before in self._before.values())

    def note_mode(self, module: torch.nn.Module, training: bool) -> None:
        """Take note that somebody else has given a kept module another mode, for good."""
        before = self._before.get(id(module), {})
        if "training" in before:
            before["training"] = training
        else:
            self._modes = [
                (other, training if other is module else held) for other, held in self._modes
            ]

    def name_of(self, thing: Any) -> str | None:
        """Return the name of what an attribute of a module holds; None if none does."""
        for _, cls, _, before, _, _ in self._modules:
            for name, held in before.items():
                if held is thing:
                    return f"{cls.__name__}.{name}"
        return None

    def restore(self, report: Report) -> None:
        """Put every module back, its class and attributes first, then what they hold."""
        for module, cls, attributes, before, empty, filled in self._modules:
            try:
                attributes.update(before)
                if len(attributes) != len(before):
                    refill(attributes, before)
                if type(module) is not cls:
                    object.__setattr__(module, "__class__", cls)
                if module.__dict__ is not attributes:
                    object.__setattr__(module, "__dict__", attributes)
                if any(empty):
                    for container in empty:
                        container.clear()
                for container, contents in filled:
                    container.update(contents)
                    if [*container] != [*contents]:
                        refill(container, contents)
            except Exception as error:  # noqa: BLE001 (reported)
                report(f"the attributes of {cls.__name__}", error)
        for module, held in self._attributes:
            try:
                now = scripted_attributes(module)
                for name, value in held.items():
                    if not _alike(now[name], value):
                        set_scripted_attribute(module, name, value)
            except Exception as error:  # noqa: BLE001 (reported)
                report(f"the attributes of {type(module).__name__}", error)
        # The last first: wrappers of one scripted module share its mode.
        for module, training in reversed(self._modes):
            try:
                if module.training != training:
                    module.training = training
            except Exception as error:  # noqa: BLE001 (reported)
                report(f"the training flag of {type(module).__name__}", error)


def _alike(one: Any, other: Any) -> bool:
    """Tell whether two values that TorchScript gave are the same, down to their tensors."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict):
        return _alike([*one], [*other]) and _alike([*one.values()], [*other.values()])
    return one is other if isinstance(one, torch.Tensor) else bool(one == other)


class _Plan:
    """Where in the attributes of modules of one make containers and tensors stand.

    Attributes:
        containers: Picks the plain containers from the values of the attributes.
        others: The positions of the other values that must be looked at.
    """

    __slots__ = ("containers", "others")

    def __init__(self, types: tuple[type, ...]) -> None:
        exact = [at for at, kind in enumerate(types) if kind in PLAIN and kind is not bytearray]
        self.containers: Callable[[tuple[Any, ...]], tuple[Any, ...]] = (
            itemgetter(*exact)
            if len(exact) > 1
            else lambda values: tuple(values[at] for at in exact)
        )
        self.others = [at for at, kind in enumerate(types) if at not in exact and kind_of(kind)]
