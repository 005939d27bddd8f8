"""Keeps a model, its inputs and the process as they are, whatever a run does to them.

What is kept: of modules the training flag, the class, every attribute, hook and child,
and what they lead to; of tensors (parameters, buffers, tensors in attributes, inputs)
content, shape, place and gradient; of inputs what they lead to; the random generators;
the settings of torch and of the process. What cannot be kept is told where it was changed.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from threading import get_ident
from types import FunctionType, TracebackType
from typing import Any

import torch

from tbscope.errors import TraceError
from tbscope.sources.eager.active import keepers
from tbscope.sources.eager.keep.kept_contents import MOST_OBJECTS, KeptContents
from tbscope.sources.eager.keep.kept_objects import KeptModules
from tbscope.sources.eager.keep.kept_process import Restorer, keep_generator, keep_process
from tbscope.sources.eager.keep.kept_tensors import KeptTensors
from tbscope.sources.eager.keep.kinds import is_foreign
from tbscope.sources.eager.keep.surroundings import Surroundings
from tbscope.sources.torch.internals import OPTIMIZER_HOOKS
from tbscope.sources.torch.misfits import with_article

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
        stood_in_evaluation: Tells whether all modules stood in evaluation before the block.
        switched: Tells whether a module is kept, and in the mode of the run.
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
        self._contents = KeptContents()
        self._modules = KeptModules(self._contents, training)
        self._surroundings = Surroundings()
        self._process: list[Restorer] = []
        self.left: list[str] = []
        self._failures: list[tuple[str, Exception]] = []
        self.thread = 0
        self.switch = self._modules.switch
        self.stood_in_evaluation = self._modules.stood_in_evaluation
        self.switched = self._modules.switched
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

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep an optimizer that is about to make a step in the block, however it is reached."""
        self._contents.add(optimizer)
        for name in OPTIMIZER_HOOKS:
            for hook in getattr(optimizer, name, {}).values():
                self._add_hook(hook)
        self._take_found()

    def note_mode(self, module: torch.nn.Module, training: bool) -> None:
        """Take note that another thread has given a module a mode, which it is to have after."""
        self._modules.note_mode(module, training)

    def _take_found(self) -> None:
        """Keep what modules and inputs lead to, and the modules, tensors and generators there."""
        contents = self._contents
        for hook in self._modules.hooks:
            self._add_hook(hook)
        self._modules.hooks = []
        contents.walk()
        while contents.modules:
            found, contents.modules = contents.modules, []
            for module in found:
                if self._modules.keeps(module):
                    continue
                # One whose `__init__` never ran has not even a table of children.
                if getattr(module, "_modules", None) is None:
                    self._modules.add(module, switch=False)
                    continue
                for inner in torch.nn.Module.modules(module):
                    # Not switched: its mode is its own until it is called.
                    self._modules.add(inner, switch=False)
            contents.walk()
        for function, cls in self._modules.forwards:
            if isinstance(function, FunctionType) and not is_foreign(cls):
                self._surroundings.add(function, cls)
        for function in contents.functions:
            self._surroundings.add(function)
        self._modules.forwards, contents.functions = [], []
        generators = [*contents.generators, *self._surroundings.generators]
        self._process += map(keep_generator, generators)
        self._surroundings.generators = []
        self._tensors.add([*self._modules.tensors, *contents.tensors])
        contents.generators, contents.tensors, self._modules.tensors = [], [], []
        if self._tensors.hooks:
            hooks, self._tensors.hooks = self._tensors.hooks, []
            for hook in hooks:
                self._add_hook(hook)
            self._take_found()

    def _add_hook(self, hook: Any) -> None:
        """Keep what a function leads to that runs in a backward pass: it may be a training step."""
        self._contents.add(hook)
        while isinstance(hook, partial):
            hook = hook.func
        function = getattr(hook, "__func__", hook)
        if isinstance(function, FunctionType):
            self._surroundings.add(function, keep=self._contents.add)

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

        self._tell(self._surroundings.settle(self._report))

    def _tell(self, left: list[str]) -> None:
        """Note what is not as it was before."""
        contents = self._contents
        left += contents.rebound()
        for thing in contents.moved_on():
            held = self._modules.name_of(thing)
            where = f" ({held})" if held else ""
            left.append(f"{with_article(thing)}{where}")
        self.left = [f"the run changed {what}, which is not put back" for what in left]
        if contents.objects_left_out:
            self.left.append(
                f"the model and its inputs lead to more than {MOST_OBJECTS:,} objects: what the "
                "run changed in the others is not put back"
            )
        if contents.bytes_left_out:
            self.left.append(
                f"{contents.bytes_left_out:,} bytes in arrays of numpy were not copied: what the "
                "run wrote into them is not put back"
            )

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
