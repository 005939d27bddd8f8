"""Packages of the extra `tbscope[onnx]`, imported at their first use."""

from importlib import import_module
from typing import Any

from tbscope.errors import ArgumentError

__all__ = ["import_extra"]


def import_extra(package: str) -> Any:
    """Import a package of the extra.

    Args:
        package: The import name of the package or of a submodule (`onnx`, `onnx_ir`).
    Raises:
        ArgumentError: The package is not installed.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package.partition(".")[0]:
            raise
        raise ArgumentError(
            f"ONNX models need the package {package.partition('.')[0]!r}, which is not installed",
            why="it comes with an extra of tbscope, as most models never become ONNX",
            fix="pip install 'tbscope[onnx]'",
        ) from error
