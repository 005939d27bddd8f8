"""`install`: the SummaryWriters of torch and tensorboardX draw with `tbscope.add_graph`.

A library that trains models calls their `add_graph`; after `install()`, its code needs no change.
On request, a training step is drawn in scripts that never call it. No package is imported for
that: an import hook patches a writer, and hooks the optimizers, that are imported later.
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
from typing import TYPE_CHECKING, Any, Unpack

from tbscope.options import Drawing, OnError, check_on_error, check_options
from tbscope.utils.option import shows_options
from tbscope.utils.validation import check_truth

if TYPE_CHECKING:
    from tbscope.api.watch_script import ScriptWatch


_OPTIMIZERS = "torch.optim.optimizer"
_HOMES = ("torch.utils.tensorboard.writer", "tensorboardX.writer", _OPTIMIZERS)
"""The modules whose `SummaryWriter` draws graphs, and the module of torch's optimizers."""


@dataclass(slots=True, eq=False)
class _Order:
    """The options of one `install` or `installed`, for the drawing, and for errors.

    Attributes:
        watch: Whether a training step is drawn; False once the script has drawn a graph.
        watching: What watches the script, after the first step of an optimizer.
    """

    on_error: OnError
    drawing: Drawing
    watch: bool = False
    logdir: str | None = None
    watching: "ScriptWatch | None" = None


@shows_options
def install(
    *,
    on_error: OnError = "raise",
    watch: bool = False,
    logdir: str | None = None,
    **drawing: Unpack[Drawing],
) -> None:
    """Make `add_graph` of torch's and tensorboardX's SummaryWriter draw with tbscope.

    From now on `writer.add_graph(model, input_to_model, verbose, use_strict_trace)` is
    `tbscope.add_graph(writer, ...)`, also if a library calls it (Lightning's
    `TensorBoardLogger(log_graph=True)`), and for a writer that is imported later. It takes all
    further arguments of `tbscope.add_graph`, too, and returns the graph; `verbose` prints it,
    `use_strict_trace` has no effect. A subclass that overrides `add_graph` keeps its own.

    One call is enough: a further call only replaces the options.

    >>> import torch, tbscope
    >>> tbscope.install(on_error="warn", level="module")
    >>> with torch.utils.tensorboard.SummaryWriter("runs/theirs") as writer:
    ...     writer.add_graph(torch.nn.Linear(3, 5), torch.rand(1, 3))
    <Graph Linear: 4 nodes, 1 calls>
    >>> tbscope.uninstall()

    Args:
        on_error: "raise" raises, as torch's does; "warn" warns once of each error, and the
            training goes on. A call that has its own `on_error` overrides it.
        watch: Whether a training step of each model is drawn, too, as by `tbscope.watch`, unless
            the script has called `add_graph` before: the models are found by the parameters of
            optimizers, and the second step or a later one is drawn.
        logdir: The folder of these steps if the script has no SummaryWriter; None for a folder in
            `runs`, as torch names it.
        drawing: Options of the drawing, as for `add_graph`; those of a call override them.
    Raises:
        ArgumentError: An option is unknown or wrong.
    """
    order = _ordered(on_error, drawing, watch=watch, logdir=logdir)
    _end_watching()
    _standing[:] = [order]
    _take_effect()


def uninstall() -> None:
    """Restore the original `add_graph` of these writers.

    Nothing happens if nothing is installed. A block of `with tbscope.installed()` stays in force
    until it ends. Steps that are awaited are not drawn any more.

    >>> import tbscope
    >>> tbscope.install()
    >>> tbscope.uninstall()
    """
    _end_watching()
    _standing.clear()
    _take_effect()


@contextmanager
@shows_options
def installed(*, on_error: OnError = "raise", **drawing: Unpack[Drawing]) -> Iterator[None]:
    """Make `add_graph` of these writers draw with tbscope, during a block.

    >>> import torch, tbscope
    >>> with tbscope.installed(level="module"):
    ...     with torch.utils.tensorboard.SummaryWriter("runs/theirs") as writer:
    ...         writer.add_graph(torch.nn.Linear(3, 5), torch.rand(1, 3))
    <Graph Linear: 4 nodes, 1 calls>

    Args:
        on_error: As for `install`.
        drawing: As for `install`.
    Raises:
        ArgumentError: An option is unknown or wrong.
    """
    order = _ordered(on_error, drawing)
    _blocks.append(order)
    try:
        _take_effect()
        yield
    finally:
        _blocks.remove(order)
        _take_effect()


def _ordered(
    on_error: OnError, drawing: Drawing, *, watch: bool = False, logdir: str | None = None
) -> _Order:
    check_on_error(on_error)
    check_truth("watch", watch)
    check_options(**drawing)
    return _Order(on_error, drawing, watch, logdir)


# -- patches ------------------------------------------------------------------------------------

_lock = threading.Lock()
# The order of `install`, if there is one; below, those of the open blocks of all threads.
_standing: list[_Order] = []
_blocks: list[_Order] = []
# By the patched class: its original function, and ours.
_replaced: dict[type[object], tuple[object, object]] = {}
# The hook of all optimizers, if any order has been in force since torch was imported.
_hooks: list[Any] = []


def _in_force() -> _Order | None:
    return next(reversed([*_standing, *_blocks]), None)


def _take_effect() -> None:
    """Patch the loaded writers if an order is in force; restore all of them if none is."""
    with _lock:
        wanted = _in_force() is not None
        if wanted and _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        if not wanted and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        if not wanted:
            for cls in list(_replaced):
                _put_back(cls)
            while _hooks:
                _hooks.pop().remove()
    if wanted:
        for module in _loaded():
            _see_to(module)


def _loaded() -> Iterator[ModuleType]:
    """Yield the writers' modules in `sys.modules`, after waiting for imports in other threads."""
    for name in _HOMES:
        if sys.modules.get(name) is not None:
            try:
                yield import_module(name)
            except ImportError:  # The importing thread receives it.
                continue


def _see_to(module: ModuleType) -> None:
    """Patch the `add_graph` of a module's SummaryWriter, or hook the optimizers, once."""
    if module.__name__ == _OPTIMIZERS and not _hooks and _in_force():
        _hooks.append(module.register_optimizer_step_post_hook(_step_ended))
    cls: Any = getattr(module, "SummaryWriter", None)
    with _lock:
        now = vars(cls).get("add_graph") if isinstance(cls, type) else None
        if now is None or _in_force() is None:
            return
        theirs, _ = _replaced.get(cls, (now, None))
        # Any other function is ours, or a wrapper that somebody has put around ours.
        if now is theirs:
            cls.add_graph = _ours(theirs)
            _replaced[cls] = theirs, cls.add_graph


def _put_back(cls: type[Any]) -> None:
    theirs, ours = _replaced[cls]
    # A wrapper around ours stays; without an order, ours calls the original.
    if vars(cls).get("add_graph") is ours:
        cls.add_graph = theirs
        del _replaced[cls]


def _ours(theirs: Any) -> object:
    @functools.wraps(theirs)
    def add_graph(
        self: Any,
        model: Any,
        input_to_model: object = None,
        verbose: bool = False,
        use_strict_trace: bool = True,
        **options: object,
    ) -> object:
        order = _in_force()
        if order is None:
            return theirs(self, model, input_to_model, verbose, use_strict_trace, **options)
        order.watch = False
        # This imports torch: not before the first call, as a script may set up things first.
        from tbscope.api.add_graph import add_graph as draw

        merged: Any = {"on_error": order.on_error, **order.drawing, **options}
        return draw(self, model, input_to_model, verbose, use_strict_trace, **merged)

    return add_graph


def _end_watching() -> None:
    for order in _standing:
        if order.watching is not None:
            order.watching.close()


def _step_ended(optimizer: Any, *_: object) -> None:
    """Report a step of an optimizer to what watches the script."""
    order = _in_force()
    if order is None or not order.watch:
        return
    if order.watching is None:
        from tbscope.api.watch_script import ScriptWatch

        order.watching = ScriptWatch(order.logdir, order.drawing)
    order.watching.step_ended(optimizer)


# -- writers that are imported later ------------------------------------------------------------


class _Finder(MetaPathFinder):
    """Import hook: finds the writers' modules by the other finders, and patches them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the other finders, with a loader that patches the writer."""
        if fullname not in _HOMES:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            own = vars(spec.loader)

            def exec_module(module: ModuleType) -> None:
                # Once: the module keeps this loader, and may be reloaded with it.
                del own["exec_module"]
                module.__loader__.exec_module(module)  # type: ignore[union-attr]
                _see_to(module)

            own["exec_module"] = exec_module
        return spec


_finder = _Finder()
