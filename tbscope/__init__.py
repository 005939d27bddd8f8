"""tbscope draws any PyTorch model in TensorBoard's Graphs dashboard.

writer.add_graph(model, input), and the page shows the model grouped as its author
wrote it. The public names are listed in `__all__` and loaded when first used.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from tbscope.utils.gc_pause import not_collecting as _not_collecting

if TYPE_CHECKING:
    from tbscope.analysis.costs import Costs, graph_costs, node_costs, scope_costs
    from tbscope.analysis.summary import Summary
    from tbscope.api.add_graph import add_graph, add_overlay
    from tbscope.api.install import install, installed, uninstall
    from tbscope.api.watch import Watched, watch
    from tbscope.comparison.api import Checked, check, diff
    from tbscope.comparison.changes import Change
    from tbscope.comparison.difference import Difference
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
    from tbscope.functions.definition import Definition, Use
    from tbscope.functions.functions import Functions
    from tbscope.ir.graph import (
        Argument,
        Call,
        Collective,
        Constant,
        Gradient,
        Graph,
        MeshDimension,
        Module,
        Node,
        Note,
        Output,
        Parameter,
        Part,
        Profile,
        Sharding,
        Source,
        Value,
    )
    from tbscope.ir.invariants import verify
    from tbscope.ir.scopes import Scope, ScopePart, parse_scope_path
    from tbscope.options import Drawing
    from tbscope.pipeline import to_graph_def
    from tbscope.ranks.merge import merge_ranks
    from tbscope.rules.linter import Finding, lint
    from tbscope.sources.compiled.compiling import (
        CompileBackend,
        compile_backend,
        compile_graphs,
    )
    from tbscope.sources.compiled.results import CompiledGraphs, GraphBreak
    from tbscope.sources.eager.recording import Recording, record
    from tbscope.sources.eager.trace import trace
    from tbscope.sources.eager.user_scopes import pop_scope, push_scope, scope
    from tbscope.sources.fx.exported import from_export
    from tbscope.sources.fx.graph_modules import from_fx
    from tbscope.sources.graphdef.reading import from_graph_def
    from tbscope.sources.logs.reading import LoggedGraph, read_log
    from tbscope.sources.onnx.export.export import export_onnx
    from tbscope.sources.onnx.export.modules_to_functions import Regrouped, modules_to_functions
    from tbscope.sources.onnx.reading import from_onnx
    from tbscope.sources.registry import load
    from tbscope.sources.torch.fake_process_group import fake_world
    from tbscope.sources.torchscript.scripts import from_torchscript
    from tbscope.writer import SummaryWriter

__version__ = "0.1.0"

__all__ = [
    "Argument",
    "ArgumentError",
    "Call",
    "Change",
    "Checked",
    "Collective",
    "CompileBackend",
    "CompiledGraphs",
    "Constant",
    "ConversionError",
    "Costs",
    "Definition",
    "Difference",
    "Drawing",
    "Finding",
    "Functions",
    "Gradient",
    "Graph",
    "GraphBreak",
    "GraphError",
    "InputError",
    "LoggedGraph",
    "MeshDimension",
    "Module",
    "Node",
    "NotFoundError",
    "Note",
    "Output",
    "Parameter",
    "Part",
    "Profile",
    "RanksError",
    "Recording",
    "Regrouped",
    "Scope",
    "ScopeError",
    "ScopePart",
    "Sharding",
    "Source",
    "Summary",
    "SummaryWriter",
    "TbscopeError",
    "TraceError",
    "Use",
    "Value",
    "Watched",
    "WriterError",
    "add_graph",
    "add_overlay",
    "check",
    "compile_backend",
    "compile_graphs",
    "diff",
    "export_onnx",
    "fake_world",
    "from_export",
    "from_fx",
    "from_graph_def",
    "from_onnx",
    "from_torchscript",
    "graph_costs",
    "install",
    "installed",
    "lint",
    "load",
    "merge_ranks",
    "modules_to_functions",
    "node_costs",
    "parse_scope_path",
    "pop_scope",
    "push_scope",
    "read_log",
    "record",
    "scope",
    "scope_costs",
    "to_graph_def",
    "trace",
    "uninstall",
    "verify",
    "watch",
]

_HOMES = {
    "tbscope.api.add_graph": "add_graph add_overlay",
    "tbscope.comparison.changes": "Change",
    "tbscope.comparison.api": "Checked check diff",
    "tbscope.comparison.difference": "Difference",
    "tbscope.analysis.costs": "Costs graph_costs node_costs scope_costs",
    "tbscope.errors": "ArgumentError ConversionError GraphError InputError NotFoundError "
    "RanksError ScopeError TbscopeError TraceError WriterError",
    "tbscope.functions.definition": "Definition Use",
    "tbscope.functions.functions": "Functions",
    "tbscope.api.install": "install installed uninstall",
    "tbscope.ir.graph": "Argument Call Collective Constant Gradient Graph MeshDimension Module "
    "Node Note Output Parameter Part Profile Sharding Source Value",
    "tbscope.ir.invariants": "verify",
    "tbscope.ranks.merge": "merge_ranks",
    "tbscope.rules.linter": "Finding lint",
    "tbscope.options": "Drawing",
    "tbscope.pipeline": "to_graph_def",
    "tbscope.ir.scopes": "Scope ScopePart parse_scope_path",
    "tbscope.sources.compiled.compiling": "CompileBackend compile_backend compile_graphs",
    "tbscope.sources.compiled.results": "CompiledGraphs GraphBreak",
    "tbscope.sources.eager.user_scopes": "pop_scope push_scope scope",
    "tbscope.sources.eager.recording": "Recording record",
    "tbscope.sources.eager.trace": "trace",
    "tbscope.sources.graphdef.reading": "from_graph_def",
    "tbscope.sources.logs.reading": "LoggedGraph read_log",
    "tbscope.sources.onnx.export.export": "export_onnx",
    "tbscope.sources.onnx.reading": "from_onnx",
    "tbscope.sources.onnx.export.modules_to_functions": "Regrouped modules_to_functions",
    "tbscope.sources.fx.exported": "from_export",
    "tbscope.sources.fx.graph_modules": "from_fx",
    "tbscope.sources.registry": "load",
    "tbscope.sources.torch.fake_process_group": "fake_world",
    "tbscope.sources.torchscript.scripts": "from_torchscript",
    "tbscope.analysis.summary": "Summary",
    "tbscope.api.watch": "Watched watch",
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
