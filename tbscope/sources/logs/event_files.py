"""Event files of a log, and the graphs in each of them."""

import os
import struct
from collections.abc import Iterator

from tbscope.messages import error_text
from tbscope.sources.file_kind import Readable, file_kind, open_file, reason_unopened
from tbscope.sources.files import SAVED_MODEL, unreadable
from tbscope.sources.logs.events import EventError, LoggedContent, graphs_in
from tbscope.utils.files import masked_crc, path_of

DOING = "no graphs can be read"
"""First words of the errors about a log."""

# TensorBoard recognises event files by this part of their names.
_MARK = "tfevents"
_FIX = "copy the file again; read_log takes the files beside it one by one, too"
_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")


def log_files(path: object, *, fix: str) -> list[tuple[str, str]]:
    """Return the run and the path of each event file at a path, in order.

    Args:
        path: The path of an event file, or of a directory that is searched with all below it.
        fix: The advice in the error for any other path.
    Raises:
        ArgumentError: There is no such file, or no event file.
    """
    text, kind = path_of(path), file_kind(path)
    if text is None or kind not in ("directory", "events"):
        raise unreadable(path, DOING, _no_log(text, kind), fix)
    if kind == "events":
        return [(".", text)]
    files = list(_event_files(text))
    if not files:
        if os.path.exists(os.path.join(text, "saved_model.pb")):
            raise unreadable(path, DOING, *SAVED_MODEL)
        raise unreadable(
            path,
            DOING,
            "there is no event file in it, nor below: the name of one has 'tfevents' in it",
            "use the directory that TensorBoard has as --logdir",
        )
    return files


def _no_log(text: str | None, kind: str | None) -> str:
    """Return the reason why a path leads to no log, from the path and the kind of its file."""
    if text is None:
        return "it takes the path of an event file or of a directory"
    if kind is not None:
        return "it is a file of another kind: tbscope.load(path) reads it"
    if "://" not in text and not os.path.exists(text):
        return "there is no such file or directory"
    return reason_unopened(text) or (
        "it is no event file: its first bytes are no record with a checksum"
    )


def _event_files(directory: str) -> Iterator[tuple[str, str]]:
    entries = []
    if "://" in directory:
        from tbscope.sources.remote_files import list_remote

        top = directory.rstrip("/")
        for folder, files in list_remote(directory):
            run = folder.rstrip("/").removeprefix(top).strip("/") or "."
            entries += [(run, name, f"{folder.rstrip('/')}/{name}") for name in files]
    else:
        seen = set()
        for folder, below, files in os.walk(directory, followlinks=True):
            # A symbolic link may lead back to an enclosing directory.
            real = os.path.realpath(folder)
            if real in seen:
                below.clear()
                continue
            seen.add(real)
            run = os.path.relpath(folder, directory)
            entries += [(run, name, os.path.join(folder, name)) for name in files]
    for run, name, path in sorted(entries):
        if _MARK in name:
            yield run, path


def files_of_run(directory: str, run: str) -> list[str]:
    """Return the paths of the event files of a run in a directory, in order.

    Raises:
        OSError: There is no such run. A remote store may raise another error.
    """
    if "://" in directory:
        from tbscope.sources.remote_files import list_directory

        top = directory.rstrip("/")
        folder = top if run == "." else f"{top}/{run}"
        return [f"{folder}/{name}" for name in sorted(list_directory(folder)) if _MARK in name]
    folder = os.path.join(directory, run)
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if _MARK in name]


def contents_of_file(path: str) -> Iterator[LoggedContent]:
    """Yield the graphs and figures in an event file, in order.

    Raises:
        ArgumentError: The file cannot be read, or is damaged; the message contains the offset.
    """
    offset = 0
    try:
        with open_file(path) as (file, size):
            for event in _records(file, size):
                yield from graphs_in(event)
                offset += _HEAD.size + len(event) + _TAIL.size
    except EventError as error:
        why = f"the record at byte {offset:,} {error}"
        raise unreadable(path, DOING, why, _FIX) from error
    except OSError as error:
        raise unreadable(path, DOING, error_text(error)) from error


# -- records: lengths, checksums, and the bytes between them ----------------------------------


def _records(file: Readable, size: int) -> Iterator[bytes]:
    """Yield the records of a file, each checked.

    Source: tensorflow/core/lib/io/record_writer.cc

    Args:
        file: The file, at its start.
        size: The size of the file in bytes. The length of a record is limited by the bytes that are
            left.
    Raises:
        EventError: A record is cut off, claims more bytes than are left, or a checksum is wrong.
    """
    offset = 0
    while offset < size:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise EventError(f"is cut off: {len(head)} bytes are left for its head")
        length, checksum = _HEAD.unpack(head)
        if masked_crc(head[:8]) != checksum:
            raise EventError("is damaged: its length and the checksum of that differ")
        remaining = size - offset - _HEAD.size - _TAIL.size
        if length > remaining:
            claims = f"it claims {length:,} bytes, and {max(remaining, 0):,} are left"
            raise EventError(f"is cut off: {claims}")
        data = file.read(length)
        tail = file.read(_TAIL.size)
        if len(data) < length or len(tail) < _TAIL.size:
            raise EventError("is cut off: the file has become shorter")
        if masked_crc(data) != _TAIL.unpack(tail)[0]:
            raise EventError("is damaged: its content and the checksum of that differ")
        yield data
        offset += _HEAD.size + length + _TAIL.size
