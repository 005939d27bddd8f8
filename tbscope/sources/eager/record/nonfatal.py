"""A recorder whose own errors never reach the code that it watches: a training goes on."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tbscope.sources.eager.record.recorder import Recorder

__all__ = ["EVENTS", "NonfatalRecorder"]

EVENTS = (
    *("add_operation", "add_kernel", "fail_operation", "add_read", "add_slices", "add_face"),
    *("know", "open_scope", "close_scope", "enter_call", "leave_call", "fail_call"),
    *("gave_gradients", "gradient_was_set", "begin_step", "end_step", "fail_step", "waited"),
    *("note_fork", "took_over", "about_to_write", "source_at"),
)
"""The methods by which modes, module calls, user scopes and setters report to a recorder."""

_BLOCKS = ("backward_pass", "outside_step", "swapping", "replaced_tensors", "function")


class NonfatalRecorder(Recorder):
    """A recorder that reports its first error, is suspended from then on, and has the run go on.

    Args:
        failed: Called with the error.
        named: The keyword arguments of `Recorder`.
    """

    def __init__(self, *args: Any, failed: Callable[[Exception], None], **named: Any) -> None:
        super().__init__(*args, **named)
        self._failed = failed

    def fail(self, error: Exception) -> None:
        """Suspend recording from now on, and report an error."""
        if not self.paused:
            self.paused = True
            self._failed(error)


def _careful(name: str) -> Callable[..., Any]:
    """Return a method of `Recorder` that reports its errors instead of raising them."""
    method = getattr(Recorder, name)

    @functools.wraps(method)
    def tell(recorder: NonfatalRecorder, *args: object, **kwargs: object) -> Any:
        try:
            return method(recorder, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  It is reported.
            recorder.fail(error)
            # The last argument of `leave_call` is the result of the call, which goes on to the
            # caller.
            return args[-1] if name == "leave_call" else None

    return tell


def _careful_block(name: str) -> Callable[..., Any]:
    """Return a block of `Recorder` that reports its errors; errors of the code inside go on."""
    method = getattr(Recorder, name)

    @contextmanager
    def told(recorder: NonfatalRecorder, *args: object, **kwargs: object) -> Iterator[Any]:
        given: Any = None

        def gave(result: object) -> None:
            try:
                # The variable is None if the block could not begin; that error is reported by now.
                given(result)
            except Exception as error:  # noqa: BLE001  It is reported.
                recorder.fail(error)

        def leave(*raised: object) -> None:
            try:
                block.__exit__(*raised)
            except Exception as own:  # noqa: BLE001  It is reported: the code's own error goes on.
                recorder.fail(own)

        with ExitStack() as stack:
            try:
                block = method(recorder, *args, **kwargs)
                given = block.__enter__()
                stack.push(leave)
            except Exception as error:  # noqa: BLE001  It is reported.
                recorder.fail(error)
            yield gave

    return functools.wraps(method)(told)


for _name in EVENTS:
    setattr(NonfatalRecorder, _name, _careful(_name))
for _name in _BLOCKS:
    setattr(NonfatalRecorder, _name, _careful_block(_name))
