"""Checks for torch's programs, cheap enough for any object: they import no part of torch."""

import re
import sys
from typing import TYPE_CHECKING, TypeGuard

from tbscope.sources.files import archive_entries

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["holds_model", "is_exported", "is_graph_module", "is_program_file"]

_MODEL = re.compile(r"(^|/)(models/[^/]+\.json|serialized_exported_program\.json)$")


def is_exported(obj: object) -> TypeGuard["ExportedProgram"]:
    """Whether an object is an ExportedProgram; torch.export is not imported for the check."""
    module = sys.modules.get("torch.export.exported_program")
    return module is not None and isinstance(obj, module.ExportedProgram)


def is_graph_module(obj: object) -> bool:
    """Whether an object is a graph module; torch.fx is not imported for the check."""
    module = sys.modules.get("torch.fx.graph_module")
    return module is not None and isinstance(obj, module.GraphModule)


def is_program_file(obj: object) -> bool:
    """Whether an object is the path of a file that torch.export.save has written.

    The content of the file decides, not its name.
    """
    return any(map(holds_model, archive_entries(obj)))


def holds_model(name: str) -> bool:
    """Whether an entry with this name in an archive describes a program."""
    return _MODEL.search(name) is not None
