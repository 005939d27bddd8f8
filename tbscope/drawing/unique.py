"""Where a drawn name is made unique: whoever names a thing that is drawn claims its name here.

The names of nodes and scopes, of the chunks around them and of the seeds in the panel of
functions are claimed from one `UniqueNames` each, which hands out none of them twice.
"""

from collections.abc import Callable, Iterable

__all__ = ["UniqueNames", "ordinal", "with_ordinal"]


def ordinal(number: int) -> str:
    """Return `1st`, `2nd`, `3rd`, `4th`, `11th`, ... for 1, 2, 3, 4, 11, ..."""
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ends.get(number % 10, 'th')}"


def with_ordinal(name: str, number: int) -> str:
    """Return `relu.2nd` for `relu` and 2.

    TensorBoard folds siblings that end in consecutive numbers; it does not fold these. And
    `relu.2` would be a later call of a module.
    """
    return f"{name}.{ordinal(number)}"


class UniqueNames:
    """Hands out names and never the same one twice."""

    def __init__(
        self,
        taken: Iterable[str] = (),
        *,
        numbered: Callable[[str, int], str] = with_ordinal,
    ) -> None:
        """Start with names that are taken already.

        Args:
            taken: These names.
            numbered: How a name is told from others that are the same: from the name and 2,
                3, ... it makes another one.
        """
        self._taken = set(taken)
        self._numbered = numbered
        # What number a name had last, so that a thousand equal ones are not counted each time.
        self._counts: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def reserve(self, name: str) -> None:
        """Take a name that may be taken already."""
        self._taken.add(name)

    def claim(self, wish: str) -> str:
        """Take a name, and return it: the wish, or the wish with a number where others have it."""
        taken = self._taken
        name = wish
        if name in taken:
            number = self._counts.get(wish, 1)
            while name in taken:
                number += 1
                name = self._numbered(wish, number)
            self._counts[wish] = number
        taken.add(name)
        return name
