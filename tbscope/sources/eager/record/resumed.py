"""Module calls that run on after they returned: `async def forward`, and one that yields.

What such a forward gives runs step by step, between other code. Each step stands in the scope
of its call all the same, for as long as it runs.
"""

from collections.abc import Callable, Generator, Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from tbscope.sources.eager.record.scope_stack import Frame, ScopeStack
from tbscope.sources.torch.unfinished import LAZY_ITERATORS

__all__ = ["RESUMED", "Resumed"]

RESUMED: frozenset[type] = frozenset({*LAZY_ITERATORS, CoroutineType, AsyncGeneratorType})
"""What a forward gives that has run nothing of it yet."""


class Resumed:
    """A module call that goes on whenever somebody asks for its next step.

    Args:
        scopes: The scopes of the run.
        frame: The call, which is closed between its steps.
        failed: Told of an error that ends it.
    """

    def __init__(
        self,
        scopes: ScopeStack,
        frame: Frame,
        *,
        failed: Callable[[BaseException, Frame], None],
    ) -> None:
        self._scopes = scopes
        self._frame = frame
        self._failed = failed

    def stands_for(
        self, given: Any, *, yields: Callable[[Any], None], ends: Callable[[Any], None]
    ) -> Any:
        """Return what the caller of the module gets instead: it gives the same.

        Args:
            given: What forward gave: of one of the types `RESUMED`.
            yields: Told of each entry of a generator.
            ends: Told of what a coroutine gives, or a generator returns, while the call is open.
        """
        if type(given) is CoroutineType:
            return self._coroutine(given, ends)
        if type(given) is AsyncGeneratorType:
            return self._async_generator(given, yields, ends)
        if type(given) is GeneratorType:
            return self._steps(given, yields, ends)
        return self._entries(given, yields, ends)

    def _entries(
        self, given: Iterator[Any], yields: Callable[[Any], None], ends: Callable[[Any], None]
    ) -> Iterator[Any]:
        while True:
            try:
                entry = self._step(lambda _: next(given), None)
            except StopIteration:
                self._step(ends, None)
                return
            yields(entry)
            yield entry

    async def _coroutine(self, given: Any, ends: Callable[[Any], None]) -> Any:
        return await _Awaited(self._steps(given, _nothing, ends))

    async def _async_generator(
        self, given: Any, yields: Callable[[Any], None], ends: Callable[[Any], None]
    ) -> Any:
        sent = None
        while True:
            try:
                entry = await _Awaited(self._steps(given.asend(sent), _nothing, _nothing))
            except StopAsyncIteration:
                self._step(ends, None)
                return
            yields(entry)
            try:
                sent = yield entry
            except GeneratorExit:
                await given.aclose()
                raise

    def _steps(
        self, given: Any, yields: Callable[[Any], None], ends: Callable[[Any], None]
    ) -> Generator[Any, Any, Any]:
        resume, sent = given.send, None
        while True:
            try:
                entry = self._step(resume, sent)
            except StopIteration as end:
                self._step(ends, end.value)
                return end.value
            yields(entry)
            try:
                resume, sent = given.send, (yield entry)
            except GeneratorExit:
                self._step(lambda _: given.close(), None)
                raise
            except BaseException as error:  # noqa: BLE001 (handed on to the model)
                resume, sent = given.throw, error

    def _step(self, resume: Callable[[Any], Any], sent: Any) -> Any:
        """Go on with the call until it gives something; others may open calls until it goes on."""
        frame, scopes = self._frame, self._scopes
        assert frame.place is not None
        scopes.open_call(frame.place, frame)
        try:
            return resume(sent)
        except (StopIteration, StopAsyncIteration):
            raise
        except Exception as error:
            self._failed(error, frame)
            raise
        finally:
            scopes.close_call(frame)


class _Awaited:
    """Has the steps of a coroutine awaited."""

    def __init__(self, steps: Generator[Any, Any, Any]) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._steps


def _nothing(_: Any) -> None:
    pass
