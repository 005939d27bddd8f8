"""Looks through the code in a TorchScript file for what torch would run while it loads the file.

Methods are compiled, and not run. But torch runs `__setstate__` of the objects in a file, and
evaluates what stands as a default, or as the value of a constant. And it follows code as deep as
it goes: without an end to its stack, which ends the process.
"""

import ast
import re
from collections.abc import Iterator, Mapping

__all__ = ["NoCodeError", "check_chains", "what_runs"]

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
    if _is_plain(plain):
        return None
    try:
        tree = ast.parse(plain)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NoCodeError(f"torch writes none like it: {type(error).__name__}: {error}") from error
    _check_levels(tree)
    for statement in tree.body:
        for name, value in _evaluated(statement):
            if not _is_literal(value):
                return f"{name} (line {value.lineno}), which torch would evaluate"
        for function in _functions(statement):
            if function.name == "__setstate__":
                return f"__setstate__ (line {function.lineno}), which torch would call"
    return None


# What most files are made of: classes and functions, of which nothing but bodies has calls.
_AT_MARGIN = re.compile(r"(class \w+\([\w.]+\):|def \w+\(.*|op_version_set = 0)?")
_OF_CLASS = re.compile(r"  (def \w+\(.*|[\w.]+ ?: [\w.\[\], ]+|\w+(\[\w+\])? = [\w.\[\], ]+)")
_HEAD = re.compile(r"^ *def \w+\([^=]*?\)(?: -> [^=\n]*?)?:$", re.MULTILINE)
# So long without a comma or a bracket is only what runs on and on: `- - - -`, `a.a.a.a`. In
# brackets, that goes on in the next line, and in each pair anew.
_LONG = re.compile(r"[^,()\[\]{}\n]{2000}")
_LISTED = r"(?:[^,()\[\]{}]{0,199}+,)*+[^,()\[\]{}]{0,199}+"
_INNERMOST = re.compile(rf"\({_LISTED}\)|\[{_LISTED}\]|\{{{_LISTED}\}}")
_BRACKET = re.compile(r"[()\[\]{}]")
# An elif stands in the one before it, as do blocks, however little each is indented, and signs.
_DEEP = re.compile(r"^ *elif\b|^ {200}|[-+~]\s*[-+~]", re.MULTILINE)
_DEEPEST = 40
_MOST_GLANCED = 200_000


def _is_plain(text: str) -> bool:
    """Tell, at a glance, whether nothing of some code is evaluated, and nothing of it is deep.

    Args:
        text: The code, without texts and comments.
    Returns:
        False for what has to be looked at more closely.
    """
    if len(text) > _MOST_GLANCED or "__setstate__" in text or _DEEP.search(text):
        return False
    if text.count("def ") != len(_HEAD.findall(text)):
        return False
    of_class = False
    for line in text.split("\n"):
        if not line.startswith(" "):
            if not _AT_MARGIN.fullmatch(line):
                return False
            of_class = line.startswith("class") or (of_class and not line)
        elif of_class and not line.startswith("    ") and not _OF_CLASS.fullmatch(line):
            return False
    for _ in range(_DEEPEST):
        if _LONG.search(text):
            return False
        text, count = _INNERMOST.subn("0", text)
        if not count:
            # What is left is a bracket that nobody closes, or one around what runs on and on.
            return _BRACKET.search(text) is None
    return False


# torch follows more than this; and code of this depth nobody writes. Python puts all of
# `a < b < c` on one level, torch each in the other; and torch itself writes no more than two.
_MOST_LEVELS = 1000
_MOST_JOINED = 20


def _check_levels(tree: ast.AST) -> None:
    """Check how deep code is, level by level: Python takes more than torch does."""
    level = [tree]
    for _ in range(_MOST_LEVELS):
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
        if not level:
            return
        for node in level:
            if isinstance(node, ast.BoolOp | ast.Compare):
                joined = len(node.values if isinstance(node, ast.BoolOp) else node.comparators)
                if joined > _MOST_JOINED:
                    raise NoCodeError(f"it joins {joined:,} things in line {node.lineno}")
    raise NoCodeError(f"it nests more than {_MOST_LEVELS:,} things in each other")


_HEADS = re.compile(r"^(?:class|def) +(\w+)", re.MULTILINE)
_LONGEST_CHAIN = 100


def check_chains(codes: Mapping[str, str]) -> None:
    """Check that classes and functions do not need each other in too long a row.

    torch compiles what is needed in the middle of what needs it.

    Args:
        codes: The text of each file of code, by the name of what is in it (`__torch__.nets`).
    Raises:
        NoCodeError: They do.
    """
    heads = {home: list(_HEADS.finditer(text)) for home, text in codes.items()}
    if sum(map(len, heads.values())) <= _LONGEST_CHAIN:
        return
    roots = "|".join({re.escape(home.partition(".")[0]) for home in codes})
    # What may name something that a file defines: `__torch__.nets.Net`.
    names = re.compile(rf"(?:{roots})(?:\s*\.\s*\w+)+")
    needs: dict[str, list[str]] = {}
    for home, text in codes.items():
        ends = [*[head.start() for head in heads[home][1:]], len(text)]
        for head, end in zip(heads[home], ends, strict=False):
            named = names.findall(text, head.start(), end)
            needs.setdefault(f"{home}.{head[1]}", []).extend(["".join(n.split()) for n in named])
    seen: set[str] = set()
    for first in needs:
        row = [] if first in seen else [iter([first])]
        while row:
            name = next((_defined(each, needs) for each in row[-1]), None)
            if name is None:
                row.pop()
            elif name and name not in seen:
                seen.add(name)
                row.append(iter(needs[name]))
                if len(row) - 1 > _LONGEST_CHAIN:
                    raise NoCodeError(
                        f"more than {_LONGEST_CHAIN} classes and functions need each other in a "
                        f"row, the last {name}"
                    )


def _defined(name: str, needs: Mapping[str, object]) -> str:
    """Return what a name is, or is part of, that is defined; "" where it is of torch."""
    while name and name not in needs:
        name = name.rpartition(".")[0]
    return name


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
