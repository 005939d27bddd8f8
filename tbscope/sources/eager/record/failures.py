"""What failed in a run: the operation and the module call in which an error arose."""

from tbscope.ir.graph import Node
from tbscope.sources.eager.record.scope_stack import Frame

__all__ = ["Failures"]


class Failures:
    """Keeps the latest errors in mind, as each may be caught, or end the run.

    Attributes:
        call: The latest error that left a module call, with the innermost such call.
    """

    def __init__(self) -> None:
        self.call: tuple[BaseException, Frame] | None = None
        self._operation: tuple[BaseException, Node] | None = None

    def left_call(self, error: BaseException, frame: Frame) -> None:
        """Keep in mind that an error left a module call, unless it left one inside of that."""
        if self.call is None or self.call[0] is not error:
            self.call = (error, frame)

    def is_known(self, error: BaseException) -> bool:
        """Tell whether the operation is known that raised this error."""
        return self._operation is not None and self._operation[0] is error

    def left_operation(self, error: BaseException, node: Node) -> None:
        """Keep in mind that an operation raised an error."""
        self._operation = (error, node)

    def operation(self, error: BaseException) -> Node | None:
        """Return the operation that raised this error; None where none did."""
        known = self._operation
        return known[1] if known is not None and known[0] is error else None
