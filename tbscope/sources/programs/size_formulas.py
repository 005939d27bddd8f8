"""Which texts are formulas of sizes: torch has Python evaluate them, so a file may hold no others.

Mul(Integer(2), Symbol('s11', positive=True, integer=True))
"""

import ast
import functools
import re

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
_MOST_EXPONENT, _MOST_NUMBER, _MOST_TEXT = 64, 10**20, 10_000
_SYMBOL = re.compile(r"[A-Za-z_]\w{0,99}")
# The functions with a text for their first argument.
_TEXTS = {"Symbol": _SYMBOL, "Float": re.compile(r"-?[0-9.]{1,40}(e[+-]?[0-9]{1,3})?")}
_OPERATORS = (
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr),
    ast.Pow,
)


@functools.lru_cache(maxsize=4096)
def is_size_formula(text: str) -> bool:
    """Whether a text is a formula of sizes, and nothing else that Python would run."""
    if len(text) > _MOST_TEXT:
        return False
    try:
        return _is_formula(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_formula(node: ast.AST, *, in_power: bool = False, most: int = _MOST_NUMBER) -> bool:
    """Whether a node and all below it are of a formula.

    Args:
        node: The node.
        in_power: Whether it is in a power; a power of powers has no end.
        most: The largest number in it.
    """
    if isinstance(node, ast.Constant):
        value = node.value
        return (
            value is None
            or type(value) is float
            or (isinstance(value, int) and -most < value < most)
        )
    if isinstance(node, ast.Name):
        return bool(_SYMBOL.fullmatch(node.id)) and "__" not in node.id
    name = ""
    if isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
        name = "Pow" if isinstance(node.op, ast.Pow) else "BinOp"
        parts = [node.left, node.right]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
        if name not in _FUNCTIONS:
            return False
        if name in _TEXTS and parts and _is_text(parts[0], _TEXTS[name]):
            del parts[0]
    else:
        return False
    if name in _GROW:
        if in_power or len(parts) != 2:
            return False
        base, exponent = parts
        return _is_formula(base, in_power=True) and _is_formula(
            exponent, in_power=True, most=_MOST_EXPONENT + 1
        )
    # Of small numbers, an exponent may still make a large one.
    if name == "BinOp" and most < _MOST_NUMBER:
        return False
    return all(_is_formula(part, in_power=in_power, most=most) for part in parts)


def _is_text(node: ast.AST, form: re.Pattern[str]) -> bool:
    if not isinstance(node, ast.Constant) or type(node.value) is not str:
        return False
    return form.fullmatch(node.value) is not None
