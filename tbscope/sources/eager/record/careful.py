"""A recorder whose own errors never reach the code that it watches: a training goes on."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from tbscope.sources.eager.record.recorder import Recorder

__all__ = ["CarefulRecorder"]

# What modes, module calls, scopes by hand and setters tell a recorder.
_TOLD = (
    *("add_operation", "add_kernel", "fail_operation", "add_read", "add_slices", "add_face"),
    *("know", "open_scope", "close_scope", "enter_call", "leave_call", "fail_call"),
    *("gave_gradients", "gradient_was_set", "begin_step", "end_step", "fail_step", "waited"),
    *("tell_of_fork", "took_over", "about_to_write", "source_at"),
)
_BLOCKS = ("backward_pass", "outside_step", "swapping", "others_stand_in")


class CarefulRecorder(Recorder):
    """Looks away from its first error on, which it tells, and has the run go on.

    Args:
        failed: Given the error.
        named: As for a recorder.
    """

    def __init__(self, *args: Any, failed: Callable[[Exception], None], **named: Any) -> None:
        super().__init__(*args, **named)
        self._failed = failed

    def fail(self, error: Exception) -> None:
        """Look away from now on, and tell of an error."""
        if not self.paused:
            self.paused = True
            self._failed(error)

    @contextmanager
    def function(self, name: str) -> Iterator[Callable[[Any], None]]:
        """Record the run of a function that is an operation's argument, as a recorder does."""
        with _Block(self, super().function(name)) as gave:

            def tell(result: Any) -> None:
                try:
                    # None where the block could not begin, of which is told by now.
                    gave(result)
                except Exception as error:  # noqa: BLE001  It is told.
                    self.fail(error)

            yield tell


class _Block(AbstractContextManager[Any]):
    """A block around a part of the run, of which neither the beginning nor the end raises."""

    def __init__(self, recorder: CarefulRecorder, block: AbstractContextManager[Any]) -> None:
        self._recorder = recorder
        self._block: AbstractContextManager[Any] | None = block

    def __enter__(self) -> Any:
        assert self._block is not None
        try:
            return self._block.__enter__()
        except Exception as error:  # noqa: BLE001  It is told.
            self._block = None
            self._recorder.fail(error)
            return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._block is None:
            return
        try:
            self._block.__exit__(kind, error, trace)
        except Exception as own:  # noqa: BLE001  It is told. The code's own error is not raised again.
            self._recorder.fail(own)


def _careful(name: str) -> Callable[..., Any]:
    method = getattr(Recorder, name)

    @functools.wraps(method)
    def tell(recorder: CarefulRecorder, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(recorder, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  It is told.
            recorder.fail(error)
            # Of a call that is left the last one is its result, which goes on.
            return args[-1] if name == "leave_call" else None

    return tell


def _careful_block(name: str) -> Callable[..., Any]:
    method = getattr(Recorder, name)

    @contextmanager
    def told(recorder: CarefulRecorder, *args: Any, **kwargs: Any) -> Iterator[None]:
        with _Block(recorder, method(recorder, *args, **kwargs)):
            yield

    return functools.wraps(method)(told)


for _name in _TOLD:
    setattr(CarefulRecorder, _name, _careful(_name))
for _name in _BLOCKS:
    setattr(CarefulRecorder, _name, _careful_block(_name))
