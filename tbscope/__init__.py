"""tbscope draws any PyTorch model in TensorBoard's Graphs dashboard.

writer.add_graph(model, input), and the page shows the model grouped as its author
wrote it. The public names are listed in `__all__` and loaded when first used.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from tbscope.utils.gc_pause import not_collecting as _not_collecting

if TYPE_CHECKING:
    from tbscope.analysis.costs import costs
    from tbscope.api.add_graph import add_graph, add_overlay
    from tbscope.api.install import install, installed, uninstall
    from tbscope.api.watch import watch
    from tbscope.comparison.api import check, diff
    from tbscope.errors import (
        ArgumentError,
        ConversionError,
        GraphError,
        InputError,
        NotFoundError,
        RanksError,
        ScopeError,
        TbscopeError,
        TraceError,
        WriterError,
    )
    from tbscope.ir.graph import Graph
    from tbscope.ir.scopes import Scope
    from tbscope.options import Drawing
    from tbscope.pipeline import to_graph_def
    from tbscope.ranks.merge import merge_ranks
    from tbscope.rules.linter import lint
    from tbscope.sources.compiled.compiling import compile_backend, compile_graphs
    from tbscope.sources.eager.recording import record
    from tbscope.sources.eager.trace import trace
    from tbscope.sources.eager.user_scopes import pop_scope, push_scope, scope
    from tbscope.sources.fx.programs import from_export, from_fx
    from tbscope.sources.graphdef.reading import from_graph_def
    from tbscope.sources.logs.reading import read_log
    from tbscope.sources.onnx.export.functions import export_onnx, modules_to_functions
    from tbscope.sources.onnx.reading import from_onnx
    from tbscope.sources.registry import load
    from tbscope.sources.torch.fake_process_group import fake_world
    from tbscope.sources.torchscript.scripts import from_torchscript
    from tbscope.writer import SummaryWriter

__version__ = "1.0.0"

__all__ = [
    "ArgumentError",
    "ConversionError",
    "Drawing",
    "Graph",
    "GraphError",
    "InputError",
    "NotFoundError",
    "RanksError",
    "Scope",
    "ScopeError",
    "SummaryWriter",
    "TbscopeError",
    "TraceError",
    "WriterError",
    "add_graph",
    "add_overlay",
    "check",
    "compile_backend",
    "compile_graphs",
    "costs",
    "diff",
    "export_onnx",
    "fake_world",
    "from_export",
    "from_fx",
    "from_graph_def",
    "from_onnx",
    "from_torchscript",
    "install",
    "installed",
    "lint",
    "load",
    "merge_ranks",
    "modules_to_functions",
    "pop_scope",
    "push_scope",
    "read_log",
    "record",
    "scope",
    "to_graph_def",
    "trace",
    "uninstall",
    "watch",
]

_HOMES = {
    "tbscope.analysis.costs": "costs",
    "tbscope.api.add_graph": "add_graph add_overlay",
    "tbscope.api.install": "install installed uninstall",
    "tbscope.api.watch": "watch",
    "tbscope.comparison.api": "check diff",
    "tbscope.errors": "ArgumentError ConversionError GraphError InputError NotFoundError "
    "RanksError ScopeError TbscopeError TraceError WriterError",
    "tbscope.ir.graph": "Graph",
    "tbscope.ir.scopes": "Scope",
    "tbscope.options": "Drawing",
    "tbscope.pipeline": "to_graph_def",
    "tbscope.ranks.merge": "merge_ranks",
    "tbscope.rules.linter": "lint",
    "tbscope.sources.compiled.compiling": "compile_backend compile_graphs",
    "tbscope.sources.eager.recording": "record",
    "tbscope.sources.eager.trace": "trace",
    "tbscope.sources.eager.user_scopes": "pop_scope push_scope scope",
    "tbscope.sources.fx.programs": "from_export from_fx",
    "tbscope.sources.graphdef.reading": "from_graph_def",
    "tbscope.sources.logs.reading": "read_log",
    "tbscope.sources.onnx.export.functions": "export_onnx modules_to_functions",
    "tbscope.sources.onnx.reading": "from_onnx",
    "tbscope.sources.registry": "load",
    "tbscope.sources.torch.fake_process_group": "fake_world",
    "tbscope.sources.torchscript.scripts": "from_torchscript",
    "tbscope.writer": "SummaryWriter",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


# A type checker that saw `__getattr__` would accept any name of the package, misspelt ones too.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name from the module that defines it, on first use."""
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Imports allocate so many objects that the garbage collector would walk all of torch's.
        with _not_collecting():
            attribute = getattr(_import_module(home), name)
        globals()[name] = attribute
        return attribute


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
