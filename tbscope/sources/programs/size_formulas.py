"""Which texts are formulas of sizes: torch has Python evaluate them, so a file may hold no others.

Mul(Integer(2), Symbol('s11', positive=True, integer=True))
"""

import ast
import re
from typing import Any

__all__ = ["is_size_formula"]

_FUNCTIONS = frozenset(
    {
        *("Add", "Mul", "Pow", "Integer", "Rational", "Float", "Symbol", "Max", "Min", "Mod"),
        *("And", "Or", "Not", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "Abs", "floor", "ceiling"),
        *("Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan"),
        *("GreaterThan", "FloorDiv", "ModularIndexing", "Where", "PythonMod", "CleanDiv"),
        *("CeilToInt", "FloorToInt", "CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow"),
        *("FloatTrueDiv", "IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "TruncToFloat"),
        *("TruncToInt", "RoundToInt", "RoundDecimal", "ToFloat", "Identity"),
    }
)
# With these a short formula may make a number of any length.
_GROW = frozenset({"Pow", "LShift", "PowByNatural", "FloatPow"})
_MOST_EXPONENT = 64
_MOST_TEXT = 10_000
_MOST_DIGITS = 20
_SYMBOL = re.compile(r"[A-Za-z_]\w{0,99}")
_FLOAT = re.compile(r"-?[0-9.]{1,40}(e[+-]?[0-9]{1,3})?")
_PLAIN = (
    *(ast.Expression, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod),
    *(ast.BinOp, ast.UnaryOp, ast.USub, ast.UAdd, ast.Not, ast.Invert, ast.BitAnd, ast.BitOr),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.keyword),
)


def is_size_formula(text: Any) -> bool:
    """Tell whether a text is a formula of sizes, and nothing else that Python would run."""
    if type(text) is not str or not 0 < len(text) <= _MOST_TEXT:
        return False
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    # The texts that stand where one may.
    allowed: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not _is_call(node, allowed):
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            if not _is_small(node.left, node.right):
                return False
            allowed.add(node.op)
    return all(_is_plain(node) or node in allowed for node in ast.walk(tree))


def _is_call(node: ast.Call, allowed: set[ast.AST]) -> bool:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in _FUNCTIONS:
        return False
    first = node.args[0] if node.args else None
    if isinstance(first, ast.Constant) and type(first.value) is str:
        form = {"Symbol": _SYMBOL, "Float": _FLOAT}.get(name)
        if form is None or not form.fullmatch(first.value):
            return False
        allowed.add(first)
    return name not in _GROW or (len(node.args) == 2 and _is_small(*node.args))


def _is_small(base: ast.expr, exponent: ast.expr) -> bool:
    """Tell whether a power stays a number that can be written: of no power, to a small number."""
    for node in ast.walk(base):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if isinstance(node, ast.Pow) or (called and node.func.id in _GROW):  # type: ignore[attr-defined]
            return False
    numbers = [node for node in ast.walk(exponent) if isinstance(node, ast.Constant)]
    names = [node for node in ast.walk(exponent) if isinstance(node, ast.BinOp)]
    return not names and all(
        type(number.value) is not int or abs(number.value) <= _MOST_EXPONENT for number in numbers
    )


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        value = node.value
        number = type(value) in (int, float, bool, type(None))
        return number and (type(value) is not int or abs(value) < 10**_MOST_DIGITS)
    if isinstance(node, ast.Call):
        return True
    if isinstance(node, ast.Name):
        return node.id in _FUNCTIONS or (bool(_SYMBOL.fullmatch(node.id)) and "__" not in node.id)
    return isinstance(node, _PLAIN)
