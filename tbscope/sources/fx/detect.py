"""Tells what a program of torch is, at no cost for those who draw none: everything is asked."""

import re
import sys

from tbscope.sources.torch.compat.archives import archive_entries

__all__ = ["holds_model", "is_exported", "is_graph_module", "is_program_file"]

_MODEL = re.compile(r"(^|/)(models/[^/]+\.json|serialized_exported_program\.json)$")


def is_exported(thing: object) -> bool:
    """Tell whether something is an ExportedProgram; torch.export is not imported to learn that."""
    home = sys.modules.get("torch.export.exported_program")
    return home is not None and isinstance(thing, home.ExportedProgram)


def is_graph_module(thing: object) -> bool:
    """Tell whether something is a graph module of torch.fx, which is not imported to learn that."""
    home = sys.modules.get("torch.fx.graph_module")
    return home is not None and isinstance(thing, home.GraphModule)


def is_program_file(thing: object) -> bool:
    """Tell whether something is the path of a file that torch.export.save has written.

    The file is asked what it holds; its name counts for nothing.
    """
    return any(map(holds_model, archive_entries(thing)))


def holds_model(name: str) -> bool:
    """Tell whether the file of this name in an archive describes a program."""
    return _MODEL.search(name) is not None
