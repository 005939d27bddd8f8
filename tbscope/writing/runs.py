"""Runs: the directory of one, and an event file in it that TensorBoard reads late enough."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tbscope.errors import WriterError
from tbscope.words import shown
from tbscope.writing.failures import foresee_failure, writing_failed
from tbscope.writing.records import file_name
from tbscope.writing.sinks import describe, log_directory

__all__ = ["open_run"]


@contextmanager
def open_run(sink: Any, run_name: str | None) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Yield the directory of a run, and a function that opens the sink of its events.

    Args:
        sink: An object with `add_event`, as `open_sink` returns it.
        run_name: The run, as a path below the sink's own; None for the sink's own, where the
            function returns the sink itself. Any other has an event file of its own, opened
            by the function and closed in the end. The function takes the name of a file
            that TensorBoard must read before, empty for none; where the sink's own file
            would be read first, there is a new one for this run, too.
    Raises:
        WriterError: The sink tells no directory, and a run below it is asked for; or no file
            can be opened there.
    """
    directory = log_directory(sink)
    if run_name is not None and not directory:
        raise WriterError(
            f"cannot write a run {shown(run_name)} below that of {describe(sink)}",
            why="it does not tell its log directory",
            fix=f"give a writer of that run: tbscope.SummaryWriter('runs/x/{run_name}')",
        )
    place = directory if run_name is None else f"{directory.rstrip('/')}/{run_name}"
    with ExitStack() as opened:

        def open_file(before: str) -> Any:
            if run_name is None and _is_read_after(sink, before):
                return sink
            foresee_failure(place)
            try:
                file_writer = _open_file_after(place, before)
            except Exception as error:
                raise writing_failed(place, error) from error
            opened.callback(file_writer.close)
            return file_writer

        yield place, open_file


def _open_file_after(directory: str, before: str) -> EventFileWriter:
    """Open an event file that is read after the file with this name, as far as clocks allow.

    The name begins with the second, so the next one decides where the rest of it does not.
    """
    file_writer = EventFileWriter(directory)
    if not _is_read_after(file_writer, before):
        file_writer.close()
        time.sleep(1 - time.time() % 1)
        file_writer = EventFileWriter(directory)
    return file_writer


def _is_read_after(sink: Any, before: str) -> bool:
    """Tell whether a sink's file is read after that with this name, or is that; True if unknown.

    The files of a run are read in the order of their names, in which `.10` stands before
    `.9`, and a graph that is read takes the place of all of its tag that are not of a lower step.

    Source: tensorboard/data/server/run.rs (`RunLoader.files`), reservoir.rs (`preempt`);
    tensorboard/backend/event_processing/directory_watcher.py
    """
    name = file_name(sink)
    return not name or name >= before
