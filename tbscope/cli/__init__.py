"""The `tbscope` command: a thin shell around the library, and all of it that prints or exits.

Each command is a file of its own, named in `_main.py`.
"""

from tbscope.cli.command_line import main

__all__ = ["main"]
