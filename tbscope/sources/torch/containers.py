"""Classes of modules that are never called, for sources that record only their names."""

from collections.abc import Iterable

__all__ = ["container_class"]


def container_class(names: Iterable[str], name: str) -> str:
    """Return the full class name that fits a module of which a source records only the name.

    Args:
        names: The qualified names of all modules.
        name: The qualified name of the module.
    Returns:
        `ModuleList` if all its children are numbered, else plain `Module`.
    """
    prefix = f"{name}."
    children = {
        other_name[len(prefix) :].partition(".")[0]
        for other_name in names
        if other_name.startswith(prefix)
    }
    if children and all(child.isdecimal() for child in children):
        return "torch.nn.modules.container.ModuleList"
    return "torch.nn.modules.module.Module"
