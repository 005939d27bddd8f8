"""The `tbscope` command: a thin shell around the library, and all of it that prints or exits."""

from tbscope.cli._commands import main

__all__ = ["main"]
