"""What Python reads of tensors: their contents leave the graph, and may decide how it goes on."""

from tbscope.figures.notes import Read
from tbscope.ir.graph import Source, Value

__all__ = ["Reads", "shares_memory"]

_SHARES_MEMORY = frozenset({"numpy", "array", "dlpack"})


def shares_memory(name: str) -> bool:
    """Tell whether this operation hands out the memory of a tensor, so that it may be written."""
    return name in _SHARES_MEMORY


class Reads(list[Read]):
    """The times that Python read the content of a tensor, in order."""

    def note(self, value: Value, name: str, source: Source | None) -> None:
        """Note that an operation (`item`, `tolist`) handed a value to Python."""
        attributes = value.producer.attributes
        attributes["read_by_python"] = f"{name} at {source}" if source else name
        self.append(Read(value, name, source))
