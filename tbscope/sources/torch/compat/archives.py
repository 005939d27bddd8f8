"""Entries of torch's files, which are zip archives, read without loading their contents."""

from tbscope.utils.files import path_of

__all__ = ["archive_entries"]


def archive_entries(thing: object) -> list[str]:
    """Return the names of the entries of a zip archive; empty for other files and objects.

    Args:
        thing: The path of a file; any other object has no entries.
    """
    path = path_of(thing)
    if path is None:
        return []
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return []
