"""Keeps a model, its inputs and the process as they are, whatever a run does to them.

What is kept: of modules the training flag, the class, every attribute, hook and
child, and what plain containers in attributes hold; of tensors (parameters, buffers,
tensors in attributes, inputs) content, shape, place and gradient; of inputs the
contents of containers and objects; the random generators; torch's settings.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from threading import get_ident
from types import TracebackType
from typing import Any

import torch

from tbscope.errors import TraceError
from tbscope.sources.eager.active import keepers
from tbscope.sources.eager.keep.kept_objects import KeptContents, KeptModules
from tbscope.sources.eager.keep.kept_process import Restorer, keep_generator, keep_process
from tbscope.sources.eager.keep.kept_tensors import KeptTensors

__all__ = ["Preserved"]

_SHOWN_FAILURES = 3


class Preserved(AbstractContextManager["Preserved"]):
    """A block after which modules, inputs and process are as they were before it.

    Modules, inputs and their children stay the very same objects. Contents of tensors
    are put back only if `about_to_write` was told of each write.

    Args:
        modules: The modules, each by itself: children count only where they are listed.
        inputs: A nest of the modules' arguments.
        training: The mode in which the modules run in the block; None for the one in
            which each stands.

    Attributes:
        thread: The identity of the thread that runs the block.
        about_to_write: To be told of each tensor that something is about to write into.
        about_to_set: To be told of each tensor whose data, gradient or flag the run is about
            to set, or whose gradient it is about to take.
        about_to_accumulate: To be told before the run adds to gradients.
        switch: Has a module switch itself to the mode of the run, by its own method.
        kept: Returns the tensors whose content is kept.
        written: Returns the tensors that `about_to_write` was told of.
        were_set: Returns the tensors that `about_to_set` was told of.

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
        self._modules = KeptModules(training)
        self._contents = KeptContents()
        self._process: list[Restorer] = []
        self._failures: list[tuple[str, Exception]] = []
        self.thread = 0
        self.switch = self._modules.switch
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
            self._process.extend(keep_process())
            for module in self._to_keep:
                self._modules.add(module)
            self._contents.add(self._inputs)
            self._take_found()
        except BaseException:
            self._restore()
            raise
        return self

    def add_module(self, module: torch.nn.Module) -> None:
        """Keep one more module, met in the block before its first call.

        One that is kept already stays as it is.
        """
        self._modules.add(module)
        self._take_found()

    def note_mode(self, module: torch.nn.Module, training: bool) -> None:
        """Take note that another thread has given a module a mode, which it is to have after."""
        self._modules.note_mode(module, training)

    def _take_found(self) -> None:
        """Keep the tensors and generators that were found in modules and inputs."""
        for found in (self._modules.contents, self._contents):
            self._modules.tensors += found.tensors
            self._process += map(keep_generator, found.generators)
            found.tensors, found.generators = [], []
        self._tensors.add(self._modules.tensors)
        self._modules.tensors = []

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
        # Attributes come first, so that what follows meets the tensors it knows.
        self._modules.restore(self._report)
        self._contents.restore(self._report)
        try:
            self._tensors.restore(self._report)
        except Exception as error:  # noqa: BLE001 (reported)
            self._report("the tensors", error)
        for name, restore in self._process:
            try:
                restore()
            except Exception as error:  # noqa: BLE001 (reported)
                self._report(name, error)

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
