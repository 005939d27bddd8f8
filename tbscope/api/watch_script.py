"""Watching of scripts: the models that optimizers of a running script train are drawn.

The script is unchanged. After its first step, an optimizer is known, and the modules that have its
parameters are searched among all objects: those in no other module are watched for the next step.
"""

import gc
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer

from tbscope.api.watch import watch
from tbscope.messages import error_text
from tbscope.options import Drawing
from tbscope.sources.eager.thread_state import waiting, watching
from tbscope.sources.torch.distributed import process_rank
from tbscope.utils.warning import warn_once

if TYPE_CHECKING:
    from collections.abc import Hashable


class ScriptWatch:
    """Watches each model of a script for one training step; the first has the graph of the run.

    Args:
        logdir: The folder of the graphs if the script has no SummaryWriter; None for torch's
            default, in `runs`.
        drawing: Options of the drawing.
    """

    def __init__(self, logdir: str | None, drawing: Drawing) -> None:
        self._logdir, self._drawing = logdir, drawing
        # By optimizer: the modules called since its first step, while its model is searched among
        # these; or a model that nothing else refers to.
        self._known = WeakKeyDictionary[Optimizer, object]()
        # The tag of each model, by the names of its classes and the shapes of its parameters.
        self._tags: dict[Hashable, str] = {}
        self._writer: Any = None
        self._own: list[object] = []
        # Ends the watching, and closes a writer that is not the script's.
        self._open = ExitStack()
        self.close = self._open.close

    # The step of an optimizer may be compiled, and its hooks with it.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def step_ended(self, optimizer: Optimizer) -> None:
        """Watch the model of an optimizer after its first step, or after its second."""
        called = self._known.get(optimizer)
        if process_rank() or (optimizer in self._known and not isinstance(called, _Calls)):
            return
        self._known[optimizer] = None
        if watching.recorders or any(each not in self._own for each in waiting):
            # The script records or watches steps itself.
            return
        try:
            if isinstance(called, _Calls):
                # No module has the parameters (pixels of a picture): its step ends the graph.
                self._watch(called.outermost(), optimizer, ends=optimizer)
            elif models := _models_of(optimizer):
                self._watch(models, optimizer)
            else:
                self._known[optimizer] = _Calls()
        except Exception as error:  # noqa: BLE001  A training must not end for a picture.
            warn_once(f"tbscope watches no step of the script: {error_text(error)}")

    def _watch(
        self, models: list[torch.nn.Module], optimizer: Optimizer, ends: Optimizer | None = None
    ) -> None:
        """Watch the step of some models, unless a step of equal ones is watched."""
        names = [type(model).__name__ for model in models]
        shapes = [parameter.shape for model in models for parameter in model.parameters()]
        name = "_".join(dict.fromkeys(names))
        key = name, tuple(shapes)
        if not models or key in self._tags:
            return
        while name in self._tags.values():
            name += "_"
        tag = name if self._tags else None
        self._tags[key] = name
        model = models[0]
        if len(models) > 1:
            keys = [f"{name}{names[:at].count(name) or ''}" for at, name in enumerate(names)]
            by_name = dict(zip(keys, models, strict=True))
            model = self._known[optimizer] = torch.nn.ModuleDict(by_name)
        watched = watch(self._find_writer(), model, tag=tag, optimizer=ends, **self._drawing)
        self._own.append(watched._waiting)
        self._open.callback(watched.remove)

    def _find_writer(self) -> object:
        """Return an open SummaryWriter of the script, or a new one if there is none."""
        if self._writer is None:
            known = (sys.modules.get(name) for name in ("torch.utils.tensorboard", "tensorboardX"))
            classes = tuple(module.SummaryWriter for module in known if module)
            # One that is closed would begin another file, in a folder that is done.
            writers = [writer for writer in _instances(classes) if writer.file_writer]
            if not writers:
                from torch.utils.tensorboard import SummaryWriter

                writers = [self._open.enter_context(SummaryWriter(self._logdir))]
                sys.stderr.write(f"tbscope draws a training step in {writers[0].log_dir}\n")
            self._writer = writers[0]
        return self._writer


class _Calls:
    """The modules that are called while it exists."""

    def __init__(self) -> None:
        self._modules: dict[torch.nn.Module, None] = {}
        self._hook = register_module_forward_pre_hook(
            lambda module, _: self._modules.setdefault(module)
        )

    def outermost(self) -> list[torch.nn.Module]:
        """Stop, and return the modules that are no children of others."""
        self._hook.remove()
        children = {child for module in self._modules for child in module.children()}
        return [module for module in self._modules if module not in children]


def _models_of(optimizer: Optimizer) -> list[torch.nn.Module]:
    """Return the modules that are in no other, and have a parameter of an optimizer."""
    # A module that another thread makes may have no children yet.
    modules = [module for module in _instances(torch.nn.Module) if "_modules" in vars(module)]
    ids = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    children = {id(child) for module in modules for child in module.children()}
    outermost = [module for module in modules if id(module) not in children]
    return [module for module in outermost if not ids.isdisjoint(map(id, module.parameters()))]


def _instances(classes: Any) -> list[Any]:
    """Return all objects of some classes; proxies, which only pretend to be of them, are none."""
    return [found for found in gc.get_objects() if issubclass(type(found), classes)]
