"""The private parts of torch are named in few files, each in one of them, and nowhere else."""

import ast
import sys
from importlib.machinery import ModuleSpec
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils import checkpoint

import tbscope
from tbscope.sources.eager.watch import modes
from tbscope.sources.torch.compat.tensors import is_of_its_own

PACKAGE = Path(__file__).parents[1] / "tbscope"
HOME = PACKAGE / "sources" / "torch"
NAMES = ("compat/tensors", "compat/modules", "compat/compiler", "distributed")
HOMES = [HOME / f"{name}.py" for name in NAMES]
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path not in HOMES]

# Private attributes of torch's objects. The tables of a module (`_parameters`, `_modules`) are
# not among them: what it holds is told nowhere else as it is, with what is None.
OF_OBJECTS = {
    *("_base", "_device", "_infer_parameters", "_indices", "_name", "_nested_tensor_size"),
    *("_overloadpacket", "_qualified_op_name", "_schema", "_values", "_version"),
}
OURS = {"_name", "_values", "_device"}


def is_private(name):
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def named(text):
    """Give the private parts of torch that a piece of code names."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            parts = [*node.module.split("."), *(alias.name for alias in node.names)]
            found.update(filter(is_private, parts))
        elif isinstance(node, ast.Import):
            parts = [part for alias in node.names for part in alias.name.split(".")]
            found.update(filter(is_private, parts if parts[0] == "torch" else ()))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            root = node
            while isinstance(root, ast.Attribute):
                root = root.value
            of_torch = isinstance(root, ast.Name) and root.id == "torch"
            if of_torch or node.attr in OF_OBJECTS - OURS:
                found.add(node.attr)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            names = [each.value for each in node.args[1:2] if isinstance(each, ast.Constant)]
            found.update(name for name in names if name in OF_OBJECTS)
    return found


def test_no_other_file_names_a_private_part_of_torch():
    found = {str(path.relative_to(PACKAGE)): named(path.read_text()) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_files_that_may_name_them_and_share_no_more_than_the_way_to_them():
    homes = [named(home.read_text()) for home in HOMES]
    of_tensors, of_modules, of_compiler, of_ranks = homes
    assert {"_C", "_pytree", "_schema", "_version"} <= of_tensors
    assert {"_C", "_tensor_str"} <= of_modules
    assert {"_C", "_dynamo"} <= of_compiler
    assert {"_C"} <= of_ranks
    for one, other in combinations(homes, 2):
        assert one & other <= {"_C"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("torch._C.f()", {"_C"}),
        ("from torch.utils import _pytree, flop_counter", {"_pytree"}),
        ("import torch._dynamo", {"_dynamo"}),
        ("tensor._version", {"_version"}),
        ('getattr(kernel, "_schema", None)', {"_schema"}),
        ("torch.__version__", set()),
        ("self._name, torch.exp, numpy._core", set()),
        ("from os import _exit", set()),
    ],
)
def test_what_is_private_is_found(text, found):
    assert named(text) == found


def run_in(file, code):
    """Give a function whose code stands in a file."""
    names = {"torch": torch, "sys": sys}
    exec(compile(f"def model(x): return {code}", file, "exec"), names)
    return names["model"]


@pytest.mark.parametrize(("file", "own"), [(checkpoint.__file__, True), ("mine.py", False)])
def test_torch_runs_operations_of_its_own_around_checkpointed_functions(file, own):
    assert is_of_its_own(run_in(file, "sys._getframe()")(1)) is own


@pytest.mark.parametrize("importing", [True, False])
def test_what_runs_while_the_compiler_is_imported_is_torchs_own(importing, monkeypatch):
    module = ModuleType("torch._dynamo")
    module.__spec__ = ModuleSpec("torch._dynamo", None)
    module.__spec__._initializing = importing
    monkeypatch.setitem(sys.modules, "torch._dynamo", module)
    assert is_of_its_own(sys._getframe()) is importing


@pytest.mark.parametrize(("file", "drawn"), [(checkpoint.__file__, []), ("mine.py", ["exp"])])
def test_operations_of_an_older_torch_itself_are_not_drawn(file, drawn, monkeypatch):
    monkeypatch.setattr(modes, "RUNS_FOR_ITSELF", True)
    own = run_in(file, "torch.exp(x)")
    graph = tbscope.trace(lambda x: (own(x), x.sin())[1], torch.ones(2))
    assert [node.op for node in graph.nodes if node.kind == "op"] == [*drawn, "sin"]
