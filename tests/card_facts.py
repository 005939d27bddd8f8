"""What the attributes of a drawn node tell, by their names without the blanks that order them."""

import re

_EXACT = re.compile(rb".* \(([0-9,]+)\)")


class _Plain:
    """An attribute value; a number that is told for readers is read back."""

    def __init__(self, value):
        self._value = value

    @property
    def i(self):
        """The integer, also of `4.34 G (4,338,130,944)`."""
        found = _EXACT.fullmatch(self._value.s)
        return int(found[1].replace(b",", b"")) if found else self._value.i

    def __getattr__(self, name):
        return getattr(self._value, name)


class facts(dict):  # noqa: N801  It reads as what it gives.
    """The attributes of a node by name; one that is not there is empty, as in protobuf."""

    def __init__(self, node):
        super().__init__({key.strip(): _Plain(value) for key, value in node.attr.items()})
        if "parameter_count" in self:
            # All of them are learnt, where nothing else is told.
            self.setdefault("trainable_parameter_count", self["parameter_count"])
        self._empty = _Plain(type(node)().attr["none"])

    def __missing__(self, key):
        return self._empty
