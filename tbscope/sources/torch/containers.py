"""The classes of modules that are never called, where a source tells only their names."""

from collections.abc import Iterable

__all__ = ["container_class"]


def container_class(names: Iterable[str], name: str) -> str:
    """Return the class that a module seems to have of which a source tells only the name.

    Args:
        names: The qualified names of all modules.
        name: That of the module.
    Returns:
        A ModuleList where its parts are numbered, else a module of no further class.
    """
    prefix = f"{name}."
    parts = {other[len(prefix) :].partition(".")[0] for other in names if other.startswith(prefix)}
    if parts and all(part.isdecimal() for part in parts):
        return "torch.nn.modules.container.ModuleList"
    return "torch.nn.modules.module.Module"
