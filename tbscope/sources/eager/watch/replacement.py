"""An attribute that is replaced while anyone in the process needs it to be."""

import threading
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

__all__ = ["Replaced", "Replacement"]


class Replacement:
    """Puts a substitute in the place of an attribute, and the original back.

    Several threads may need it at once: the first one replaces, the last one puts
    back. Whoever replaced the attribute meanwhile is left alone.

    Args:
        owner: The module or class that has the attribute.
        name: The name of the attribute.

    Attributes:
        original: What the attribute was before.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self._owner = owner
        self._name = name
        self._users = 0
        # Whether the owner has it from another class, so that its own has to go again.
        self._inherited = False
        self._lock = threading.Lock()
        self.original: Any = self._now()

    def _now(self) -> Any:
        """Return the attribute as its owner holds it: a class method bound to no class yet."""
        owner, name = self._owner, self._name
        held = vars(owner)
        return held[name] if name in held else getattr(owner, name)

    def by(self, substitute: Any, *, name: str | None = None) -> "Replaced":
        """Have the attribute replaced during a block.

        Args:
            substitute: What stands in its place.
            name: Another name for the attribute from now on, where nobody uses the
                replacement yet; None for the one before.
        """
        return Replaced({self: substitute}, name=name)

    def take(self, substitute: Any, name: str | None = None) -> None:
        """Replace the attribute, until `leave` is called as often as this was."""
        with self._lock:
            if self._users == 0:
                self._name = name or self._name
                self._inherited = self._name not in vars(self._owner)
                self.original = self._now()
                setattr(self._owner, self._name, substitute)
            self._users += 1

    def leave(self, substitute: Any) -> None:
        """Put the attribute back, if nobody else needs it replaced."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._now() is substitute:
                if self._inherited:
                    delattr(self._owner, self._name)
                else:
                    setattr(self._owner, self._name, self.original)


class Replaced(AbstractContextManager[None]):
    """A block in which substitutes stand in the places of attributes.

    One block for all of them, and no generator: each graph replaces 16 attributes, and a
    stack of blocks around them costs four times as much.

    Args:
        substitutes: What stands in the place of each attribute.
        name: Another name for the attributes (see `Replacement.by`).
    """

    def __init__(self, substitutes: dict[Replacement, Any], *, name: str | None = None) -> None:
        self._substitutes = substitutes
        self._name = name

    def __enter__(self) -> None:
        for replacement, substitute in self._substitutes.items():
            replacement.take(substitute, self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for replacement, substitute in self._substitutes.items():
            replacement.leave(substitute)
