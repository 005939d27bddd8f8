"""Where one slip can be made in a file, and the file with the slip in it.

The slips are those of cosmic-ray (`<` for `<=`, `or` for `and`, a number one off, a `not`
too many, a loop that never runs, ...), and one more: a statement left out. Annotations,
docstrings and blocks for type checkers are left alone, as nothing runs there.
"""

import ast
import random
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import get_operator, operator_names
from parso.python.tree import ExprStmt, Name, PythonNode

__all__ = ["Slip", "find_slips", "sample_slips", "with_slip"]

# They take names as arguments, and replace a variable by a random number.
_UNUSED = frozenset({"core/VariableReplacer", "core/VariableInserter"})

_Position = tuple[tuple[int, int], tuple[int, int]]


class RemoveStatement(Operator):
    """Leave out a call, an augmented assignment, or an assignment to a part of something."""

    def mutation_positions(self, node):
        if node.type == "simple_stmt" and _does_something(node.children[0]):
            yield (node.start_pos, node.children[0].end_pos)

    def mutate(self, node, index):
        first = node.children[0]
        node.children[0] = Name("pass", first.start_pos, prefix=first.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls):
        return (
            Example("held.pop()\n", "pass\n"),
            Example("node.name = 3\n", "pass\n"),
            Example("total += 1\n", "pass\n"),
            Example("name = 1\n", "name = 1\n"),
        )


def _does_something(statement):
    if isinstance(statement, ExprStmt):
        target, operator = statement.children[0], statement.children[1]
        augmented = getattr(operator, "value", "").endswith("=") and operator.value != "="
        return augmented or (target.type == "atom_expr" and operator.type != "annassign")
    call = statement.type == "atom_expr" and statement.children[-1].type == "trailer"
    return (call and isinstance(statement, PythonNode)) or statement.type == "del_stmt"


@dataclass(frozen=True)
class Slip:
    """One slip in one file.

    Attributes:
        path: The file, from the root of the repository.
        operator: The operator of cosmic-ray that makes it, or "RemoveStatement".
        occurrence: The how manieth place of that operator it is, counted from 0.
        line: The line where it begins, counted from 1.
    """

    path: str
    operator: str
    occurrence: int
    line: int

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line} {self.operator.removeprefix('core/')}#{self.occurrence}"


def _operators():
    found = {name: get_operator(name)() for name in operator_names() if name not in _UNUSED}
    return {**found, "RemoveStatement": RemoveStatement()}


def find_slips(root: Path, path: str) -> dict[_Position, list[Slip]]:
    """Give the slips that can be made in a file, by their place in it."""
    source = (root / path).read_text(encoding="utf-8")
    nodes = list(ast_nodes(get_ast(source)))
    quiet = _quiet_spans(source)
    found: dict[_Position, list[Slip]] = {}
    for name, operator in _operators().items():
        positions = [each for node in nodes for each in operator.mutation_positions(node)]
        for occurrence, (start, end) in enumerate(positions):
            if not any(first <= start and end <= last for first, last in quiet):
                slip = Slip(path, name, occurrence, start[0])
                found.setdefault((start, end), []).append(slip)
    return found


def _quiet_spans(source: str) -> list[_Position]:
    """Give the places of a file that nobody runs."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        quiet: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef):
            quiet.append(node.returns)
        elif isinstance(node, ast.arg):
            quiet.append(node.annotation)
        elif isinstance(node, ast.AnnAssign):
            alias = isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias"
            quiet.append(node if alias else node.annotation)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            quiet.append(node)
        spans += [
            ((each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset))
            for each in quiet
            if each is not None
        ]
    return spans


def sample_slips(root: Path, paths: list[str], *, count: int, seed: int) -> list[Slip]:
    """Give a random sample: each place in the files is as likely as any other, one slip each."""
    choose = random.Random(seed)
    places = [slips for path in paths for _, slips in sorted(find_slips(root, path).items())]
    chosen = choose.sample(places, min(count, len(places)))
    return sorted(
        (choose.choice(slips) for slips in chosen), key=lambda slip: (slip.path, slip.line)
    )


def with_slip(root: Path, slip: Slip) -> str:
    """Give the text of the file with the slip in it."""
    source = (root / slip.path).read_text(encoding="utf-8")
    changed = mutate_code(source, _operators()[slip.operator], slip.occurrence)
    assert changed not in (None, source), slip
    return changed
