"""Checks for torch's programs, cheap enough for any object: they import no part of torch."""

import sys
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def is_exported(obj: object) -> TypeGuard["ExportedProgram"]:
    """Whether an object is an ExportedProgram; torch.export is not imported for the check."""
    module = sys.modules.get("torch.export.exported_program")
    return module is not None and isinstance(obj, module.ExportedProgram)


def is_graph_module(obj: object) -> bool:
    """Whether an object is a graph module; torch.fx is not imported for the check."""
    module = sys.modules.get("torch.fx.graph_module")
    return module is not None and (isinstance(obj, module.GraphModule) or is_unflattened(obj))


def is_unflattened(obj: object) -> bool:
    """Whether an object is a module of a program that torch.export has unflattened."""
    module = sys.modules.get("torch.export.unflatten")
    return module is not None and isinstance(
        obj, module.UnflattenedModule | module.InterpreterModule
    )
