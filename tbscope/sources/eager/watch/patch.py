"""Process-wide changes while any thread needs them: replaced attributes."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class SharedBlock(AbstractContextManager[None]):
    """A block that several threads may be in at once: the first makes a change, the last undoes it.

    Args:
        change: Makes the change, and returns the function that undoes it.
    """

    def __init__(self, change: Callable[[], Callable[[], object]]) -> None:
        self._change = change
        self._put_back: Callable[[], object] | None = None
        self._users: list[None] = []
        # Garbage collection may run a finalizer that leaves the block while this thread enters it.
        # The lock is reentrant for that, and each line stays correct if a leave runs between it and
        # the next line.
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        with self._lock:
            self._users.append(None)
            if self._put_back is None:
                try:
                    self._put_back = self._change()
                except BaseException:
                    self._users.pop()
                    raise

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users.pop()
            if not self._users and self._put_back is not None:
                put_back, self._put_back = self._put_back, None
                put_back()


class Patch:
    """A substitute for an attribute of a module or a class.

    Args:
        owner: The module or class.
        name: Name of the attribute, or a function that returns the name at each replacement.
        substitute: The substitute.

    Attributes:
        original: The original attribute; a class method is not bound to a class.
        substitute: The substitute.
    """

    def __init__(self, owner: Any, name: str | Callable[[], str], substitute: Any) -> None:
        self._owner = owner
        self._asked = name
        self._name = ""
        # Whether the owner inherits the attribute, so that it has to be deleted again.
        self._inherited = False
        self.substitute = substitute
        self.original: Any = None

    def put(self) -> None:
        """Replace the attribute."""
        self._name = self._asked if isinstance(self._asked, str) else self._asked()
        table = vars(self._owner)
        self._inherited = self._name not in table
        self.original = getattr(self._owner, self._name) if self._inherited else table[self._name]
        setattr(self._owner, self._name, self.substitute)

    def put_back(self) -> None:
        """Restore the original, unless the attribute was replaced again meanwhile."""
        if vars(self._owner).get(self._name) is not self.substitute:
            return
        if self._inherited:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self.original)


class Patches(SharedBlock):
    """A block in which attributes are replaced, for all threads."""

    def __init__(self) -> None:
        super().__init__(self.put)
        self._all: list[Patch] = []

    def of(self, owner: object, name: str | Callable[[], str]) -> Callable[[Any], Patch]:
        """Return a decorator that makes a function the substitute of an attribute."""

        def add(substitute: object) -> Patch:
            self._all.append(Patch(owner, name, substitute))
            return self._all[-1]

        return add

    def put(self) -> Callable[[], None]:
        """Replace all attributes; return the function that restores them."""
        for replacement in self._all:
            replacement.put()
        return self._put_all_back

    def _put_all_back(self) -> None:
        for replacement in self._all:
            replacement.put_back()
