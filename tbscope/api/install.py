"""Has the SummaryWriters of torch and of tensorboardX draw what `tbscope.add_graph` draws.

Code that trains with another library calls their `add_graph`; after `install()` it need not be
changed. Neither is imported for that: a writer that a script imports later is met when it is.
"""

import functools
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Unpack

from tbscope.options import Drawing, OnError, check_on_error, check_options
from tbscope.utils.option import shows_options

__all__ = ["install", "installed", "uninstall"]

_HOMES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
"""The modules whose `SummaryWriter` draws graphs."""


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """What somebody has asked for: how graphs are drawn, and what becomes of errors."""

    on_error: OnError
    drawing: Drawing


@shows_options
def install(*, on_error: OnError = "raise", **drawing: Unpack[Drawing]) -> None:
    """Have `add_graph` of torch's and tensorboardX's SummaryWriter draw what tbscope draws.

    From now on `writer.add_graph(model, input_to_model, verbose, use_strict_trace)` is
    `tbscope.add_graph(writer, ...)`, also where a library calls it (Lightning's
    `TensorBoardLogger(log_graph=True)`), and for a writer that is imported later. It takes all
    further arguments of that, too, and gives the graph; `verbose` prints it, `use_strict_trace`
    has nothing left to relax. A class whose own `add_graph` takes the place of theirs keeps it.

    Once is enough: another time tells anew how graphs are drawn, and nothing else.

    Args:
        on_error: "raise" raises, as torch's does; "warn" warns once of each error, and the
            training goes on. It is for calls that do not tell.
        drawing: How graphs are drawn by calls that do not tell, as for `add_graph`.
    Raises:
        ArgumentError: An option is none.
    """
    _standing[:] = [_ordered(on_error, drawing)]
    _take_effect()


def uninstall() -> None:
    """Have `add_graph` of these writers be again what it was.

    Where nothing is installed, nothing happens. What `with tbscope.installed()` has asked for ends
    with its block.
    """
    _standing.clear()
    _take_effect()


@contextmanager
@shows_options
def installed(*, on_error: OnError = "raise", **drawing: Unpack[Drawing]) -> Iterator[None]:
    """Have `add_graph` of these writers draw what tbscope draws, during a block.

    Args:
        on_error: As for `install`.
        drawing: As for `install`.
    Raises:
        ArgumentError: An option is none.
    """
    order = _ordered(on_error, drawing)
    _blocks.append(order)
    try:
        _take_effect()
        yield
    finally:
        _blocks.remove(order)
        _take_effect()


def _ordered(on_error: OnError, drawing: Drawing) -> _Order:
    check_on_error(on_error)
    check_options(**drawing)
    return _Order(on_error, drawing)


# -- what is in force ---------------------------------------------------------------------------

_lock = threading.Lock()
# That of `install`, if there is one, and those of the blocks that are open, in any thread.
_standing: list[_Order] = []
_blocks: list[_Order] = []
# By the class that holds it: what was in the place of ours, and ours.
_replaced: dict[type[Any], tuple[Any, Any]] = {}


def _in_force() -> _Order | None:
    return next(reversed([*_standing, *_blocks]), None)


def _take_effect() -> None:
    """Put ours in the place of theirs, or theirs back."""
    with _lock:
        wanted = _in_force() is not None
        if wanted and _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        if not wanted and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        if not wanted:
            for cls in list(_replaced):
                _put_back(cls)
    if wanted:
        for module in _loaded():
            _see_to(module)


def _loaded() -> Iterator[ModuleType]:
    """Yield the writers' modules that are loaded; one that another thread loads is waited for."""
    for name in _HOMES:
        if sys.modules.get(name) is not None:
            try:
                yield import_module(name)
            except ImportError:  # Which is told to that thread.
                continue


def _see_to(module: ModuleType) -> None:
    """Put ours in the place of the `add_graph` of a module's writer."""
    cls: Any = getattr(module, "SummaryWriter", None)
    with _lock:
        now = vars(cls).get("add_graph") if isinstance(cls, type) else None
        if now is None or _in_force() is None:
            return
        theirs, _ = _replaced.get(cls, (now, None))
        # Anything else than theirs is ours, or what somebody has put around ours.
        if now is theirs:
            cls.add_graph = _ours(theirs)
            _replaced[cls] = theirs, cls.add_graph


def _put_back(cls: type[Any]) -> None:
    theirs, ours = _replaced[cls]
    # Whoever has put something around ours still calls ours, which is then as good as theirs.
    if vars(cls).get("add_graph") is ours:
        cls.add_graph = theirs
        del _replaced[cls]


def _ours(theirs: Any) -> Any:
    @functools.wraps(theirs)
    def add_graph(
        self: Any,
        model: Any,
        input_to_model: Any = None,
        verbose: bool = False,
        use_strict_trace: bool = True,
        **options: Any,
    ) -> Any:
        order = _in_force()
        if order is None:
            return theirs(self, model, input_to_model, verbose, use_strict_trace, **options)
        # torch is imported by whoever trains, and not before: a script may set up things first.
        from tbscope.api.add_graph import add_graph as draw

        told: Any = {"on_error": order.on_error, **order.drawing, **options}
        return draw(self, model, input_to_model, verbose, use_strict_trace, **told)

    return add_graph


# -- writers that are imported later ------------------------------------------------------------


class _Finder(MetaPathFinder):
    """Finds the writers' modules as the others do, and sees to them when they are loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give, with a loader that replaces the writer."""
        if fullname not in _HOMES:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            own = vars(spec.loader)

            def exec_module(module: ModuleType) -> None:
                # Once: the loader is that of the module, which may be loaded again.
                del own["exec_module"]
                module.__loader__.exec_module(module)  # type: ignore[union-attr]
                _see_to(module)

            own["exec_module"] = exec_module
        return spec


_finder = _Finder()
