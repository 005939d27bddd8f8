"""Archives: what stands in a file of torch, told without loading any of it."""

import os

__all__ = ["archive_entries"]


def archive_entries(thing: object) -> list[str]:
    """Return the names of the entries of an archive, from its path; none for anything else."""
    if not isinstance(thing, str | os.PathLike):
        return []
    try:
        path = os.fspath(thing)
    except Exception:  # noqa: BLE001 (a class of the user's may raise anything)
        return []
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return []
