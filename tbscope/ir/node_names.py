"""The names of the nodes of one graph."""

__all__ = ["Names", "claim_name"]


def claim_name(name: str, taken: set[str], *, sign: str = "~") -> str:
    """Return a name as it is, or with the first number from 2 on that makes it unique.

    Args:
        name: The name.
        taken: The names that are taken; the new one is added.
        sign: The text between the name and its number.
    """
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}{sign}{number}", number + 1
    taken.add(unique)
    return unique


class Names:
    """Names the nodes of one graph, by running numbers and by paths; no name is given twice."""

    def __init__(self) -> None:
        self._count = 0
        self._names: set[str] = set()
        self._numbers: set[str] = set()
        # For a name that was given before, the number that is tried next.
        self._next: dict[str, int] = {}

    def number(self) -> str:
        """Return the next running number that is nobody's name."""
        self._count = count = self._count + 1
        name = str(count)
        # Few parameters are named by a number alone.
        if self._numbers and name in self._numbers:
            return self.number()
        return name

    def unique(self, name: str) -> str:
        """Return a name as it is, or with the first `~number` that makes it unique."""
        names = self._names
        unique = name
        if name in names:
            number = self._next.get(name, 2)
            while (unique := f"{name}~{number}") in names:
                number += 1
            self._next[name] = number + 1
        names.add(unique)
        if unique.isdecimal():
            if int(unique) <= self._count:
                return self.unique(f"{name}~")
            self._numbers.add(unique)
        return unique
