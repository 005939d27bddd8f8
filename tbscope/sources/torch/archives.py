"""Archives: what stands in a file of torch, told without loading any of it."""

import struct
import zlib
from typing import IO, TYPE_CHECKING

from tbscope.files import path_of

if TYPE_CHECKING:
    from zipfile import ZipInfo

__all__ = ["archive_entries", "entry_content"]


def archive_entries(thing: object) -> list[str]:
    """Return the names of the entries of an archive, from its path; none for anything else."""
    path = path_of(thing)
    if path is None:
        return []
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return []


_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 1
_HEAD = struct.Struct("<4s2xH18xHH")


def entry_content(file: IO[bytes], entry: "ZipInfo", size: int) -> bytes:
    """Return the content of an entry, checked as `zipfile` checks it, in a third of its time.

    Files of torch have hundreds of small entries.

    Args:
        file: The file of the archive.
        entry: The entry.
        size: The bytes of the file.
    Raises:
        BadZipFile: It is not whole, or it is not what the archive says of it.
        NotImplementedError: It is packed in a way of which torch knows nothing.
    """
    from zipfile import BadZipFile

    file.seek(entry.header_offset)
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or head[:4] != b"PK\x03\x04":
        raise BadZipFile(f"entry {entry.filename!r} does not start with its head")
    _, flags, name_length, extra_length = _HEAD.unpack(head)
    if (flags | entry.flag_bits) & _ENCRYPTED:
        raise NotImplementedError(f"entry {entry.filename!r} is encrypted")
    name = file.read(name_length)
    if name != entry.orig_filename.encode("utf-8" if entry.flag_bits & 0x800 else "cp437"):
        raise BadZipFile(f"entry {entry.filename!r} has another name in its head: {name!r}")
    file.seek(extra_length, 1)
    content = file.read(min(entry.compress_size, size))
    if entry.compress_type == _DEFLATED:
        content = zlib.decompressobj(-15).decompress(content, entry.file_size + 1)
    elif entry.compress_type != _STORED:
        raise NotImplementedError(f"entry {entry.filename!r} is packed in an unknown way")
    if len(content) != entry.file_size or zlib.crc32(content) != entry.CRC:
        raise BadZipFile(f"entry {entry.filename!r} is not what its checksum tells")
    return content
