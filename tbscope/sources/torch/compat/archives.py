"""Archives: what stands in a file of torch, told without loading any of it."""

from tbscope.utils.files import path_of

__all__ = ["archive_entries"]


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
