"""Registry of graph sources: conversions of the argument of `add_graph` to a graph."""

import glob
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph
from tbscope.messages import did_you_mean, shown
from tbscope.run_options import RUNNING, WORLD
from tbscope.sources.compiled.results import CompiledGraphs
from tbscope.sources.file_kind import file_kind, read_whole, reason_unopened, split_tag
from tbscope.sources.files import DAMAGED, ELSEWHERE, SAVED_MODEL, FileKind
from tbscope.sources.fx.detect import is_exported, is_graph_module
from tbscope.sources.onnx.loading import is_model
from tbscope.utils.files import path_of

_USUAL = {
    "input_to_model": None,
    **{name: option.default for name, option in (RUNNING | WORLD).items()},
}

_RUN_IT = "a model is run to learn its graph: tbscope.trace(model, input)"
_GIVE_FILE = "give the path of a file that is there, or the model itself"


@dataclass(frozen=True, slots=True)
class GraphSource:
    """Kind of object that can be drawn, with its conversion to a graph.

    Attributes:
        name: The kind in words, for error messages.
        takes: Returns whether an object is of this kind.
        graph: Returns the graph of an object, from the object, its inputs, and the options of a
            run.
        files: The kinds of files that are read, too.
    """

    name: str
    takes: Callable[[object], bool]
    graph: Callable[[Any, Any, Mapping[str, object]], Graph]
    files: tuple[FileKind, ...] = ()

    def __str__(self) -> str:
        return self.name


def graph_of(model: object, input_to_model: object, run: Mapping[str, object]) -> Graph:
    """Return the graph of an object that can be drawn.

    Args:
        model: A graph, a module, or another callable.
        input_to_model: The inputs of the model, as for `add_graph`.
        run: The options with which `trace` runs the model.
    Raises:
        ArgumentError: An option does not fit the kind of object.
    """
    return _source_of(model).graph(model, input_to_model, run)


def _source_of(obj: object) -> GraphSource:
    kind = file_kind(obj)
    return next(source for source in SOURCES if kind in source.files or source.takes(obj))


def runs(obj: object) -> bool:
    """Whether an object runs with inputs, or can: a model, rather than a graph or a file."""
    return callable(obj) and not is_exported(obj)


def load(thing: object) -> Graph:
    """Return the graph in a program, a file or a log.

    >>> import torch, tbscope
    >>> tbscope.trace(torch.nn.Linear(3, 5), torch.rand(1, 3)).save("linear.json")
    >>> tbscope.load("linear.json")
    <Graph Linear: 4 nodes, 1 calls>
    >>> tbscope.load(torch.export.export(torch.nn.Linear(3, 5), (torch.rand(1, 3),)))
    <Graph Linear: 4 nodes, 1 calls>

    Args:
        thing: A graph, an `ExportedProgram`, a `torch.fx.GraphModule`, the result of
            `compile_graphs` (its overview), a function or module that torch.jit traced or scripted,
            an ONNX model, a `GraphDef`; or the path of a file that `graph.save`, torch.export.save
            or torch.jit.save wrote, of an ONNX model, of a GraphDef in binary form or as text, of
            an event file, of a log directory with one graph, or of a log directory with one run
            that has a graph of its own. A tag, and a step, may follow the path of a log
            (`runs/net:large@7`). The content of a file decides its kind; the suffix `.onnx` counts
            only if the content is of no kind.
    Returns:
        The graph.
    Raises:
        ArgumentError: The object contains no graph, as a model that has yet to run, or several
            graphs; or it is damaged.
    """
    source = _source_of(thing)
    if source is SOURCES[-1]:
        raise _without_graph(thing)
    return source.graph(thing, None, {})


def _without_graph(obj: object) -> ArgumentError:
    """Return the error that no source takes an argument."""
    why, fix = _reason_without_graph(obj)
    return ArgumentError(f"{shown(obj)} contains no graph", why=why, fix=fix)


def _reason_without_graph(obj: object) -> tuple[str, str]:
    """Return the reason why no source takes an object, and the fix."""
    path = path_of(obj) or ""
    if "://" in path:
        reason = reason_unopened(path)
        return (
            (reason, "give the path of a file that TensorBoard can open") if reason else ELSEWHERE
        )
    if file_kind(obj) == "saved_model":
        return SAVED_MODEL
    if os.path.isfile(path) and not os.path.getsize(path):
        return "it is empty", DAMAGED
    if path and not os.path.exists(path):
        others = glob.glob(os.path.join(glob.escape(os.path.dirname(path)), "*"))
        return "there is no such file", did_you_mean(path, others, _GIVE_FILE, cutoff=0.7)
    if runs(obj):
        return "it is a model, or a function, that has yet to run", _RUN_IT
    return f"it takes {', '.join(map(str, SOURCES[:-1]))}", _RUN_IT


def _read(read: Callable[[Any], Graph]) -> Callable[[object, Any, Mapping[str, object]], Graph]:
    """Return the conversion of objects that take no inputs and no options of a run."""
    return lambda obj, input_to_model, run: _as_it_is(read(obj), input_to_model, run)


def _exported(program: object) -> Graph:
    # Imported late, as in `_onnx`.
    from tbscope.sources.fx.programs import from_export

    return from_export(program)


def _traced_by_fx(module: Any, input_to_model: Any, run: Mapping[str, Any]) -> Graph:
    """Read a graph module; run it if an option asks for results that only a run has."""
    if _asks_for_run(run):
        return _run(module, input_to_model, run)
    # Imported late, as in `_onnx`.
    from tbscope.sources.fx.programs import from_fx

    return from_fx(module, input_to_model, kwargs=run.get("kwargs"))


def _asks_for_run(run: Mapping[str, object]) -> bool:
    """Whether options ask for results that only a run has."""
    return any(
        value not in (None, False)
        for name, value in run.items()
        if name not in ("kwargs", "training")
    )


def _scripted(script: Any, input_to_model: Any, run: Mapping[str, Any]) -> Graph:
    """Read a scripted module; run it if an option asks for results that only a run has."""
    if _asks_for_run(run):
        return _run(script, input_to_model, run)
    # Imported late, as in `_onnx`.
    from tbscope.sources.torchscript.scripts import from_torchscript

    training, kwargs = run.get("training"), run.get("kwargs")
    return from_torchscript(script, input_to_model, kwargs=kwargs, training=training)


def _as_it_is(graph: Graph, input_to_model: object, run: Mapping[str, object]) -> Graph:
    """Return a graph unchanged, or raise if inputs or options of a run come with it."""
    for name, value in {"input_to_model": input_to_model, **run}.items():
        # The graph contains the measurements that `profile` asks for.
        measured = name == "profile" and graph.profile is not None and type(value) in (bool, int)
        if name in _USUAL and value is not _USUAL[name] and not measured:
            raise ArgumentError(
                f"{name}={shown(value)} is given with the graph of {graph.name}",
                why="a graph has run already, and takes no inputs and no options of a run",
                fix="leave it out, or pass the model in place of its graph",
            )
    return graph


def _onnx(model: object) -> Graph:
    # Imported late: few users read an ONNX model, and each import delays a user's first graph.
    from tbscope.sources.onnx.reading import from_onnx

    return from_onnx(model)


def _has_tag(obj: object) -> bool:
    return split_tag(path_of(obj) or "")[1] is not None


def _logged(obj: object) -> Graph:
    # Imported late, as in `_onnx`.
    from tbscope.sources.logs.reading import graph_in_log, logged_graph

    path, tag = split_tag(path_of(obj) or "")
    return graph_in_log(obj) if tag is None else logged_graph(path, tag)


def _is_graph_def(obj: object) -> bool:
    return type(obj).__name__ == "GraphDef" and hasattr(obj, "SerializeToString")


def _drawn(obj: object) -> Graph:
    # Imported late, as in `_onnx`.
    from tbscope.sources.graphdef.reading import from_graph_def

    return from_graph_def(obj)


def _saved(path: object) -> Graph:
    from tbscope.formats.json import graph_from_json

    data = read_whole(path, "no graph can be read")
    try:
        return graph_from_json(data)
    except ArgumentError as error:
        raise ArgumentError(
            f"no graph can be read from {shown(path)}",
            why=f"{error.what}: {error.why}",
            fix=error.fix,
        ) from error


def _weights(path: object) -> Graph:
    # Imported late, as in `_onnx`.
    from tbscope.sources.weights import from_weights

    return from_weights(path)


def _run(model: Any, input_to_model: Any, run: Mapping[str, Any]) -> Graph:
    if path_of(model) is not None:
        raise _without_graph(model)
    # Imported late: a file that needs no torch is read without it.
    from tbscope.sources.eager.trace import trace

    return trace(model, input_to_model, **run)


def _is_script(obj: object) -> bool:
    if "torch" not in sys.modules:
        return False
    from tbscope.sources.torch.compat.modules import is_script

    return is_script(obj)


def _never(_: object) -> bool:
    return False


SOURCES = (
    GraphSource("a graph that is made already", lambda obj: isinstance(obj, Graph), _as_it_is),
    GraphSource(
        "the graphs of torch.compile",
        lambda obj: isinstance(obj, CompiledGraphs),
        _read(lambda graphs: graphs.overview),
    ),
    GraphSource("the path of a file that graph.save wrote", _never, _read(_saved), ("json",)),
    GraphSource(
        "that of an event file, or of a log directory",
        _has_tag,
        _read(_logged),
        ("events", "directory"),
    ),
    GraphSource(
        "a GraphDef, or the path of one",
        _is_graph_def,
        _read(_drawn),
        ("graph_def", "graph_def_text"),
    ),
    GraphSource("a program that torch.export made", is_exported, _read(_exported)),
    GraphSource("the path of a .pt2 file", _never, _read(_exported), ("program",)),
    GraphSource("what torch.jit traced or scripted", _is_script, _scripted),
    GraphSource(
        "the path of a file of torch.jit.save",
        _never,
        _read(lambda path: _scripted(path, None, {})),
        ("torchscript",),
    ),
    GraphSource("that of a file of weights", _never, _read(_weights), ("weights",)),
    # After the other files: a path whose content is of no other kind may end in `.onnx`.
    GraphSource("an ONNX model, or the path of one", is_model, _read(_onnx), ("onnx",)),
    GraphSource("a graph module of torch.fx", is_graph_module, _traced_by_fx),
    GraphSource("a module or another callable, which is run", lambda obj: True, _run),
)
"""Sources in the order in which they are tried. The last one takes any object, and raises if the
object cannot run."""
