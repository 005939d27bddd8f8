"""The `tbscope` command: a thin shell around the library, and the only code that prints or exits.

Each command is a file of `commands/`; `command_line` has the table of commands.
"""

from tbscope.cli.command_line import main

__all__ = ["main"]
