"""A SummaryWriter whose `add_graph` draws any model, and which loses nothing at the end."""

import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Unpack

import torch.utils.tensorboard
from torch.utils.tensorboard.writer import FileWriter

from tbscope.adding import OnError, add_graph, add_overlay
from tbscope.checks import Dtypes, InputSize
from tbscope.ir.graph import Graph
from tbscope.options import Drawing, shows_options
from tbscope.overlays.make import OverlayValues
from tbscope.writing.records import speed_up

__all__ = ["SummaryWriter"]


class SummaryWriter(torch.utils.tensorboard.SummaryWriter):
    """torch's SummaryWriter, with an `add_graph` that draws any model.

    It takes the same arguments and writes the same files. Beyond that, it closes itself
    when it is dropped and when the interpreter exits, and in a forked process it writes
    a file of its own.
    """

    file_writer: FileWriter | None  # type: ignore[assignment]  # torch says None only.
    all_writers: dict[str, FileWriter] | None  # type: ignore[assignment]
    _closer: "weakref.finalize[[FileWriter, int], SummaryWriter] | None" = None
    _process_id = -1

    @shows_options
    def add_graph(  # type: ignore[override]  # torch's gives None.
        self,
        model: Any,
        input_to_model: Any = None,
        verbose: bool = False,
        use_strict_trace: bool = True,
        *,
        kwargs: Mapping[str, Any] | None = None,
        input_size: InputSize | None = None,
        dtypes: Dtypes | None = None,
        training: bool | None = False,
        grad: bool = False,
        fake: bool = False,
        partial: bool = False,
        profile: bool | int = False,
        tag: str | None = None,
        step: int | None = None,
        run_name: str | None = None,
        on_error: OnError = "raise",
        **drawing: Unpack[Drawing],
    ) -> Graph:
        """Draw a model in TensorBoard's Graphs dashboard.

        Arguments, result and errors are those of `tbscope.add_graph`.
        """
        return add_graph(
            self,
            model,
            input_to_model,
            verbose,
            use_strict_trace,
            kwargs=kwargs,
            input_size=input_size,
            dtypes=dtypes,
            training=training,
            grad=grad,
            fake=fake,
            partial=partial,
            profile=profile,
            tag=tag,
            step=step,
            run_name=run_name,
            on_error=on_error,
            **drawing,
        )

    @shows_options
    def add_overlay(
        self,
        tag: str,
        graph: Graph,
        values: OverlayValues | None = None,
        *,
        step: int | None = None,
        run_name: str | None = None,
        on_error: OnError = "raise",
        **drawing: Unpack[Drawing],
    ) -> None:
        """Draw numbers on a graph, as an entry of its own in the page's list of tags.

        Arguments and errors are those of `tbscope.add_overlay`.
        """
        add_overlay(
            self,
            tag,
            graph,
            values,
            step=step,
            run_name=run_name,
            on_error=on_error,
            **drawing,
        )

    def flush(self) -> None:
        """Write to disk all that was added so far."""
        self._leave_file_of_parent()
        super().flush()

    def close(self) -> None:
        """Write to disk all that was added so far, and close the file.

        What is added later goes to a new file.
        """
        self._leave_file_of_parent()
        super().close()
        self._forget_file()

    def _get_file_writer(self) -> FileWriter:
        self._leave_file_of_parent()
        before = self.file_writer
        file_writer: FileWriter = super()._get_file_writer()  # type: ignore[no-untyped-call]
        if file_writer is not before:
            speed_up(file_writer)
            self._process_id = os.getpid()
            self._closer = weakref.finalize(self, _close, file_writer, self._process_id)
        return file_writer

    def _leave_file_of_parent(self) -> None:
        """Let go, in a forked process, of the file that the parent writes."""
        if self.file_writer is not None and self._process_id != os.getpid():
            self.file_writer = self.all_writers = None
            self._forget_file()

    def _forget_file(self) -> None:
        if self._closer is not None:
            self._closer.detach()
            self._closer = None


def _close(file_writer: FileWriter, process_id: int) -> None:
    """Close the file of a writer that is gone, in the process that opened it."""
    if os.getpid() != process_id:
        return
    if threading.current_thread() is threading.main_thread():
        file_writer.close()
    else:
        # Garbage may be collected in the very thread that writes this file, and closing
        # waits for that thread.
        threading.Thread(target=file_writer.close).start()
