"""A SummaryWriter whose `add_graph` draws any model, and which loses no events at exit."""

import os
import threading
import warnings
import weakref
from typing import Self

import torch.utils.tensorboard
from torch.utils.tensorboard.writer import FileWriter

from tbscope.api.add_graph import add_graph, add_overlay
from tbscope.api.watch import close_watches, watch
from tbscope.ir.graph import Graph
from tbscope.writing.records import foresee_failure, writing_failed


class SummaryWriter(torch.utils.tensorboard.SummaryWriter):
    """torch's SummaryWriter, with an `add_graph` that draws any model.

    It takes the arguments of torch's class and writes files of the same form. Beyond that, it
    closes itself when it is garbage-collected and when the interpreter exits, and in a forked
    process it writes a file of its own. A graph that cannot be written (a full disk, a removed
    directory) raises `WriterError` from the call, and leaves no half-written record. The methods
    `add_graph`, `add_overlay` and `watch` are the functions `tbscope.add_graph`,
    `tbscope.add_overlay` and `tbscope.watch` with the writer as their first argument.

    >>> import torch, tbscope
    >>> with tbscope.SummaryWriter("runs/linear") as writer:
    ...     writer.add_graph(torch.nn.Linear(3, 5), torch.rand(1, 3))
    ...     writer.add_scalar("loss", 0.5, 0)
    <Graph Linear: 4 nodes, 1 calls>
    """

    file_writer: FileWriter | None  # type: ignore[assignment]  # torch says None only.
    all_writers: dict[str, FileWriter] | None  # type: ignore[assignment]
    _closer: "weakref.finalize[..., SummaryWriter] | None" = None
    _process_id = -1

    def __enter__(self) -> Self:
        return self

    # A function becomes a method: the writer is its first argument.
    add_graph = add_graph  # type: ignore[assignment]  # torch's returns None.
    add_overlay = add_overlay
    watch = watch

    def add_onnx_graph(self, prototxt: object) -> Graph:  # type: ignore[override]  # As above.
        """Draw an ONNX model in TensorBoard's Graphs dashboard, grouped by its modules.

        It draws the graph of `add_graph(tbscope.from_onnx(prototxt))`, which takes options, too.

        Args:
            prototxt: The path of an .onnx file; or a model, as `tbscope.from_onnx` takes it.
        Returns:
            The graph that was drawn.
        Raises:
            ArgumentError: `prototxt` is no ONNX model, or onnx is not installed.
            WriterError: The file cannot be written.
        """
        # Few users read ONNX models, and each import delays everybody's first graph.
        from tbscope.sources.onnx.reading import from_onnx

        return add_graph(self, from_onnx(prototxt))

    def flush(self) -> None:
        """Write all events added so far to disk."""
        self._leave_file_of_parent()
        super().flush()

    def close(self) -> None:
        """Write all events added so far to disk, and close the file; end the watches of models.

        Later events go to a new file.
        """
        self._leave_file_of_parent()
        try:
            close_watches(self)
        finally:
            self._close()

    def _close(self) -> None:
        closer, self._closer = self._closer, None
        if closer is not None:
            closer.detach()
        try:
            super().close()
        finally:
            self.file_writer = self.all_writers = None

    def _get_file_writer(self) -> FileWriter:
        self._leave_file_of_parent()
        if self.file_writer is not None and self.all_writers is not None:
            return self.file_writer
        directory = str(self.log_dir)
        foresee_failure(directory, self.filename_suffix)
        try:
            file_writer: FileWriter = super()._get_file_writer()  # type: ignore[no-untyped-call]
        except Exception as error:
            self.file_writer = self.all_writers = None
            raise writing_failed(directory, error) from error
        assert self.all_writers is not None
        self._process_id = os.getpid()
        self._closer = weakref.finalize(self, _close, self.all_writers, self._process_id)
        return file_writer

    def _leave_file_of_parent(self) -> None:
        """Drop the parent's file in a forked process: only the parent writes to it."""
        if self.file_writer is not None and self._process_id != os.getpid():
            self.file_writer = self.all_writers = None
            if self._closer is not None:
                self._closer.detach()
                self._closer = None


def _close(all_writers: dict[str, FileWriter], process_id: int) -> None:
    """Close the files of a garbage-collected writer, in the process that opened them."""
    if os.getpid() != process_id:
        return

    def close() -> None:
        for directory, file_writer in all_writers.items():
            try:
                file_writer.close()
            except Exception as error:  # noqa: BLE001  No caller is left to receive it.
                warnings.warn(str(writing_failed(directory, error)), stacklevel=2)

    if threading.current_thread() is threading.main_thread():
        close()
    else:
        # The garbage collector may run in the thread that writes the events of this file. `close`
        # waits for that thread, so it would wait for itself.
        threading.Thread(target=close).start()
