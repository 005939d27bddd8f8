"""Looks through the code in a TorchScript file for what torch would run while it loads the file.

Methods are compiled, and not run. But torch runs `__setstate__` of the objects in a file, and
evaluates what stands as a default, or as the value of a constant.
"""

import ast
import re
from collections.abc import Iterator

__all__ = ["NoCodeError", "what_runs"]

# Each text on one line, without a prefix, and each comment.
_TEXTS = re.compile(r""""(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*'|#[^\n]*""")
_JOINED = re.compile(r"[\w\"']")
_ODD = re.compile(r"[^\x20-\x7e\n]|[\\;'\"`$?]|!(?!=)")
_HARMLESS = frozenset({"torch.device", "device", "float", "int", "annotate", "complex"})
_LITERALS = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.List, ast.Tuple, ast.Dict, ast.UnaryOp),
    *(ast.Subscript, ast.Load, ast.USub, ast.UAdd, ast.Slice, ast.Index),
)


class NoCodeError(ValueError):
    """Tells in its text why something is no code that torch has written."""


def what_runs(text: str) -> str | None:
    """Return what torch would run of some code while it loads it; None for nothing.

    Args:
        text: The code, as a file has it.
    Raises:
        NoCodeError: It is none that torch has written.
    """
    for found in _TEXTS.finditer(text):
        around = text[max(found.start() - 1, 0) : found.start()] + text[found.end() :][:1]
        if found[0][0] != "#" and _JOINED.search(around):
            line = text.count("\n", 0, found.start()) + 1
            raise NoCodeError(f"it has a text of another kind in line {line}")
    plain = _TEXTS.sub("0", text)
    odd = _ODD.search(plain)
    if odd is not None:
        line = plain.count("\n", 0, odd.start()) + 1
        raise NoCodeError(f"it has {odd[0]!r} in line {line}, where torch writes none")
    try:
        tree = ast.parse(plain)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NoCodeError(f"torch writes none like it: {type(error).__name__}: {error}") from error
    for statement in tree.body:
        for name, value in _evaluated(statement):
            if not _is_literal(value):
                return f"{name} (line {value.lineno}), which torch would evaluate"
        for function in _functions(statement):
            if function.name == "__setstate__":
                return f"__setstate__ (line {function.lineno}), which torch would call"
    return None


def _functions(statement: ast.stmt) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef):
            yield node


def _evaluated(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield what is evaluated while code is loaded, each with a name for it."""
    for function in _functions(statement):
        for default in [*function.args.defaults, *function.args.kw_defaults]:
            if default is not None:
                yield f"a default of {function.name}", default
        for decorator in function.decorator_list:
            yield f"a decorator of {function.name}", decorator
    for holder in ast.walk(statement):
        if isinstance(holder, ast.ClassDef):
            for inner in holder.body:
                if isinstance(inner, ast.Assign | ast.AnnAssign) and inner.value is not None:
                    yield f"a constant of {holder.name}", inner.value
                elif isinstance(inner, ast.Expr):
                    yield f"an expression of {holder.name}", inner.value
    if not isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.Import | ast.Pass):
        for expression in ast.walk(statement):
            if isinstance(expression, ast.Call):
                yield "a statement", expression


def _is_literal(value: ast.expr) -> bool:
    """Tell whether an expression is a constant, or a nest of constants."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            if ast.unparse(node.func) not in _HARMLESS:
                return False
        elif not isinstance(node, _LITERALS) and not isinstance(node, ast.expr_context):
            return False
    return True
