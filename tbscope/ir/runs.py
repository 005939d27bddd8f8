"""Runs of functions: which of the user's functions were running where an operation was called.

They are no scopes: a scope is a place in the module tree. A drawing makes boxes of them
where a level would be too full else (drawing/bundler.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Function", "Run"]


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of the user's or of a library's that ran.

    Attributes:
        name: What it is called; empty for what has no name of its own, such as a list
            comprehension in an older Python.
        loops: The loops in its code: the first and the last step of each.
        nested: Whether it was made while another one ran: a closure, or what a decorator puts
            around others.
    """

    name: str
    loops: tuple[tuple[int, int], ...] = ()
    nested: bool = False


@dataclass(slots=True, eq=False)
class Run:
    """One run of a function; compared by identity.

    Attributes:
        function: The function.
        around: The run that called it, of the same module call; None for the outermost, which
            mostly is the module's own forward.
        step: Where in the code of that run it was called (see `Node.step`).
    """

    function: Function
    around: "Run | None" = None
    step: int = 0

    def chain(self) -> list["Run"]:
        """Return this run and those around it, the outermost first."""
        return list(self._outwards())[::-1]

    def outermost(self) -> "Run":
        """Return the outermost of the runs around this one, or itself."""
        *_, last = self._outwards()
        return last

    def _outwards(self) -> Iterator["Run"]:
        run: Run | None = self
        while run is not None:
            yield run
            run = run.around
