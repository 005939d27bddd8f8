"""What failed in a run: the operation and the module call in which an error arose."""

from collections import deque

from tbscope.ir.graph import Node
from tbscope.sources.eager.record.scope_stack import Frame

__all__ = ["Failures"]


_KEPT = 4


class Failures:
    """Keeps the latest errors in mind, as each may be caught, or end the run.

    Several, as threads and coroutines may fail side by side; few, as errors hold tensors.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[BaseException, Frame]] = deque(maxlen=_KEPT)
        self._operations: deque[tuple[BaseException, Node]] = deque(maxlen=_KEPT)

    def left_call(self, error: BaseException, frame: Frame) -> None:
        """Keep in mind that an error left a module call, unless it left one inside of that."""
        if self.call(error) is None:
            self._calls.append((error, frame))

    def call(self, error: BaseException) -> Frame | None:
        """Return the innermost module call that this error left; None where it left none."""
        return next((frame for other, frame in self._calls if other is error), None)

    def is_known(self, error: BaseException) -> bool:
        """Tell whether the operation is known that raised this error."""
        return self.operation(error) is not None

    def left_operation(self, error: BaseException, node: Node) -> None:
        """Keep in mind that an operation raised an error."""
        self._operations.append((error, node))

    def operation(self, error: BaseException) -> Node | None:
        """Return the operation that raised this error; None where none did."""
        return next((node for other, node in self._operations if other is error), None)
