"""Snapshot of a model, its inputs and the process, restored after a run, whatever the run changes.

The snapshot covers the training flag, class, attributes, hooks and children of modules, and all
objects that they refer to; the content, shape, memory and gradient of tensors (parameters,
buffers, tensors in attributes, inputs); all objects that inputs refer to; the random generators;
the settings of torch and of the process.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from threading import get_ident

import torch

from tbscope.errors import TraceError
from tbscope.sources.eager.restore.object_snapshot import (
    MOST_ARRAY_BYTES,
    MOST_OBJECTS,
    ObjectSnapshot,
)
from tbscope.sources.eager.restore.process_settings import generators, keep_settings, tables
from tbscope.sources.eager.restore.tensor_snapshot import TensorSnapshot

_SHOWN_FAILURES = 3

# Attributes by which `DistributedDataParallel` decides whether to communicate. The other processes
# may not be tracing: this one would wait for them, or they would take its messages for a training
# step.
_ON_ITS_OWN = {"require_forward_param_sync": False, "require_backward_grad_sync": False}

active_snapshots: list["Snapshot"] = []
"""The snapshots that are active now, in all threads."""


class Snapshot(AbstractContextManager["Snapshot"]):
    """A block after which modules, inputs and process are restored to their state before it.

    Modules, inputs and their children remain the identical objects. Contents of tensors are
    restored only if `about_to_write` was called before each write.

    Args:
        modules: The modules that run in the block. Children are part of the snapshot, but change
            their mode only if they are listed, too.
        inputs: A pytree of the modules' arguments.
        training: The mode of the modules in the block; None for the present mode of each module.

    Attributes:
        thread: Identity of the thread that runs the block.
        left: Sentences on everything that is not restored.
        about_to_write: To be called with each tensor before a write into it.
        about_to_set: To be called with each tensor before the run sets its data, gradient or
            `requires_grad`, or reads its gradient.
        about_to_accumulate: To be called before the run adds to gradients.
        kept: Returns the tensors whose content is restored.
        written: Returns the tensors that `about_to_write` was called with.
        were_set: Returns the tensors that `about_to_set` was called with.

    Raises:
        TraceError: Something could not be restored. If the block itself raised, that error is
            raised instead, with a note.
    """

    def __init__(
        self,
        modules: Iterable[torch.nn.Module],
        inputs: object = None,
        *,
        training: bool | None = None,
    ) -> None:
        self._to_keep = list(modules)
        self._inputs = inputs
        self._tensors = TensorSnapshot()
        self._contents = ObjectSnapshot()
        self._training = training
        self._switched: set[int] = set()
        self._restore_settings: Callable[[], None] = lambda: None
        self.left: list[str] = []
        self._failures: list[tuple[str, Exception]] = []
        self.thread = 0
        self.about_to_write = self._tensors.about_to_write
        self.kept = self._tensors.kept
        self.written = self._tensors.written
        self.about_to_set = self._tensors.about_to_set
        self.about_to_accumulate = self._tensors.about_to_accumulate
        self.were_set = self._tensors.were_set

    def __enter__(self) -> "Snapshot":
        self.thread = get_ident()
        active_snapshots.append(self)
        try:
            self._restore_settings = keep_settings()
            for table in tables():
                self._contents.keep_alone(table)
            self._keep([*generators(), *self._to_keep, self._inputs])
            self._set_modes(self._to_keep)
        except BaseException:
            self._restore()
            raise
        return self

    def add_module(self, module: torch.nn.Module) -> None:
        """Add a module, found in the block before its first call, to the snapshot.

        A module that is part of the snapshot already is left alone.
        """
        self._keep([module])
        self._set_modes([module])

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Add an optimizer that is about to make a step in the block, wherever it is referenced."""
        self._keep([optimizer])

    # -- the modes of modules ----------------------------------------------------------------

    def switched(self, module: torch.nn.Module) -> bool:
        """Whether a module has been set to the mode of the run."""
        return id(module) in self._switched

    def _set_modes(self, modules: Iterable[torch.nn.Module]) -> None:
        """Set modules of the snapshot to the mode of the run, each of them once.

        The training flag is an attribute of a module, and is restored with the other attributes.
        """
        for module in modules:
            if id(module) in self._switched:
                continue
            self._switched.add(id(module))
            table = module.__dict__
            if "require_forward_param_sync" in table:
                table.update(_ON_ITS_OWN)
            if self._training is None:
                continue
            if "training" in table:
                table["training"] = self._training
            elif getattr(module, "training", self._training) != self._training:
                # A scripted module has its mode in C++, a wrapper of `torch.compile` in its inner
                # module. A scripted class may declare `training` as a constant.
                with suppress(AttributeError):
                    module.training = self._training

    def switch(self, root: torch.nn.Module) -> None:
        """Switch a module and its children by its own `train()` or `eval()`, from their old modes.

        If that raises, all of them have the mode of the run.
        """
        assert self._training is not None
        modules = [module for module in root.modules() if "training" in module.__dict__]
        modes = self._contents.modes()
        for module in modules:
            before = modes.get(id(module), {})
            module.__dict__["training"] = before.get("training", module.training)
        try:
            (root.train if self._training else root.eval)()
        except BaseException:
            for module in modules:
                module.__dict__["training"] = self._training
            raise

    def stood_in_evaluation(self) -> bool:
        """Whether all modules were in evaluation mode before the snapshot, as set by the caller."""
        return all(before["training"] is False for before in self._contents.modes().values())

    def note_mode(self, module: torch.nn.Module, training: bool) -> None:
        """Record that another thread has switched a module of the snapshot, for good."""
        modes = self._contents.modes()
        if id(module) in modes:
            modes[id(module)]["training"] = training

    # -- snapshot and restoration ---------------------------------------------------------------

    def _keep(self, things: Iterable[object]) -> None:
        """Take a snapshot of objects, of the objects that they refer to, and of tensors there."""
        while tensors := self._contents.keep(things):
            things = self._tensors.add(tensors)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._restore()
        if not self._failures:
            return
        failed = self._error()
        if error is None:
            raise failed from self._failures[0][1]
        error.add_note(str(failed))

    def _restore(self) -> None:
        active_snapshots.remove(self)
        try:
            self._tensors.restore(self._report)
        except Exception as error:  # noqa: BLE001 (reported)
            self._report("the tensors", error)
        self._contents.restore(self._report)
        try:
            self._restore_settings()
        except Exception as error:  # noqa: BLE001 (reported)
            self._report("the settings of the process", error)
        if self._contents.lacks_some:
            self.left = [
                f"the model and its inputs lead to more than {MOST_OBJECTS:,} objects, or "
                f"{MOST_ARRAY_BYTES:,} bytes in arrays of numpy: what the run changed in the "
                "others is not put back"
            ]

    def _report(self, what: str, error: Exception) -> None:
        self._failures.append((what, error))

    def _error(self) -> TraceError:
        shown = [
            f"{what}: {type(error).__name__}: {error}"
            for what, error in self._failures[:_SHOWN_FAILURES]
        ]
        more = len(self._failures) - len(shown)
        return TraceError(
            "the model could not be put back as it was before the run",
            why="; ".join(shown) + (f"; and {more} more" if more else ""),
            fix="make the model again, or load its state_dict, before you use it",
        )
