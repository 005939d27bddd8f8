"""Keeps a model, its inputs and the process as they are, whatever a run does to them.

What is kept: of modules the training flag, the class, every attribute, hook and child,
and what they lead to; of tensors (parameters, buffers, tensors in attributes, inputs)
content, shape, place and gradient; of inputs what they lead to; the random generators;
the settings of torch and of the process.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from threading import get_ident
from types import TracebackType
from typing import Any

import torch

from tbscope.errors import TraceError
from tbscope.sources.eager.restore.object_snapshot import KeptContents
from tbscope.sources.eager.restore.process_snapshot import generators, keep_settings, tables
from tbscope.sources.eager.restore.tensor_snapshot import KeptTensors

__all__ = ["Preserved", "keepers"]

_SHOWN_FAILURES = 3

# What `DistributedDataParallel` asks whether to talk to the other processes, which may not be
# drawing: they would be waited for, and read what they are told as a step of training.
_ON_ITS_OWN = {"require_forward_param_sync": False, "require_backward_grad_sync": False}

keepers: list["Preserved"] = []
"""Those that keep modules now, in all threads."""


class Preserved(AbstractContextManager["Preserved"]):
    """A block after which modules, inputs and process are as they were before it.

    Modules, inputs and their children stay the very same objects. Contents of tensors
    are put back only if `about_to_write` was called before each write.

    Args:
        modules: The modules that run in the block, each by itself: their children are kept
            with them, but change their mode only where they are listed.
        inputs: A nest of the modules' arguments.
        training: The mode in which the modules run in the block; None for the one that each has.

    Attributes:
        thread: The identity of the thread that runs the block.
        left: What is not put back, in sentences.
        about_to_write: To be called with each tensor that is about to be written into.
        about_to_set: To be called with each tensor whose data, gradient or flag the run is about
            to set, or whose gradient it is about to take.
        about_to_accumulate: To be called before the run adds to gradients.
        kept: Returns the tensors whose content is kept.
        written: Returns the tensors that `about_to_write` was called with.
        were_set: Returns the tensors that `about_to_set` was called with.

    Raises:
        TraceError: Something could not be put back. Where the block itself raised, that
            error goes on, with a note.
    """

    def __init__(
        self,
        modules: Iterable[torch.nn.Module],
        inputs: Any = None,
        *,
        training: bool | None = None,
    ) -> None:
        self._to_keep = list(modules)
        self._inputs = inputs
        self._tensors = KeptTensors()
        self._contents = KeptContents()
        # The training flag of a module is one of its attributes, and is put back with those.
        self._modes = self._contents.modes
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

    def __enter__(self) -> "Preserved":
        self.thread = get_ident()
        keepers.append(self)
        try:
            self._restore_settings = keep_settings()
            for table in tables():
                self._contents.keep_alone(table)
            self._keep([*generators(), *self._to_keep, self._inputs])
            for module in self._to_keep:
                self._switch_mode(module)
        except BaseException:
            self._restore()
            raise
        return self

    def add_module(self, module: torch.nn.Module) -> None:
        """Keep one more module, met in the block before its first call.

        One that is kept already stays as it is.
        """
        self._keep([module])
        self._switch_mode(module)

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep an optimizer that is about to make a step in the block, however it is reached."""
        self._keep([optimizer])

    # -- the modes of modules ----------------------------------------------------------------

    def switched(self, module: torch.nn.Module) -> bool:
        """Whether a module is in the mode of the run."""
        return id(module) in self._switched

    def _switch_mode(self, module: torch.nn.Module) -> None:
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

    # -- what is put back --------------------------------------------------------------------

    def _keep(self, things: Iterable[Any]) -> None:
        """Keep things, what they lead to, and the tensors there."""
        while tensors := self._contents.keep(things):
            things = self._tensors.add(tensors)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()
        if not self._failures:
            return
        failed = self._error()
        if error is None:
            raise failed from self._failures[0][1]
        error.add_note(str(failed))

    def _restore(self) -> None:
        keepers.remove(self)
        try:
            self._tensors.restore(self._report)
        except Exception as error:  # noqa: BLE001 (reported)
            self._report("the tensors", error)
        self._contents.restore(self._report)
        try:
            self._restore_settings()
        except Exception as error:  # noqa: BLE001 (reported)
            self._report("the settings of the process", error)
        self.left = self._contents.left()

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
            fix="make the model anew, or load its state_dict, before it is used further",
        )
