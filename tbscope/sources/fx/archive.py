"""Loading of `.pt2` files of torch.export.save, after a check that they make torch run no code.

`torch.export.load` unpickles contents of a file: example inputs, tensors of custom classes,
objects. It evaluates the formulas of sizes as Python, and loads compiled code. The file is
therefore checked first as zip and JSON, which run nothing. torch loads it only if every formula is
a formula and, without `trusted`, all that torch unpickles is plain data.
"""

import ast
import functools
import io
import json
import logging
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import torch

from tbscope.errors import ArgumentError
from tbscope.messages import error_text, shown
from tbscope.sources.files import DAMAGED, holds_model, local_file, open_archive, unreadable
from tbscope.sources.torch.compat.modules import load_named_program

_DOING = "no program can be read"
# Default name of a program in a file; a file with several programs names each of them.
_USUAL = "model"
_NAMED = re.compile(r"(?:^|/)models/([^/]+)\.json$")
# Entries that torch unpickles, which are plain data or any objects.
_PICKLED = re.compile(
    r"(^|/)(serialized_\w+\.pt|data/(weights|constants|sample_inputs)/[^/]+\.pt)$"
)
_CONFIG = re.compile(r"(^|/)data/(weights|constants)/[^/]+_config\.json$")
_OBJECT = re.compile(r"(^|/)data/constants/(custom|opaque)_obj_[^/]*$")
_COMPILED = re.compile(r"(^|/)data/aotinductor/")


def load_program(path: object, *, trusted: bool = False) -> Any:
    """Load the ExportedProgram in a file.

    Args:
        path: The path of the file.
        trusted: Whether torch may unpickle and load all contents of the file.
    Raises:
        ArgumentError: The file is of another kind or damaged, or it would run code and is not
            trusted.
    """
    raised: list[BaseException] = []
    try:
        # torch reads the open file that was checked, which a path would not ensure.
        with open(local_file(path, _DOING), "rb") as file:
            names = _check(file, path, trusted=trusted)
            file.seek(0)
            with _quiet() as raised:
                if not names or _USUAL in names:
                    return torch.export.load(file)
                if len(names) == 1:
                    return load_named_program(file, names[0])
        raise unreadable(
            path,
            _DOING,
            f"it contains {len(names)} programs: {', '.join(map(shown, names))}",
            "save one program in a file of its own: torch.export.save(program, path)",
        )
    except ArgumentError:
        raise
    except zipfile.BadZipFile as error:
        why = f"it is no whole zip file: {error_text(error)}"
        raise unreadable(path, _DOING, why, DAMAGED) from error
    except Exception as error:
        # torch logs the reason; the error that it raises at the end only refers to the log.
        reason = raised[-1] if raised and "Please check the warnings" in str(error) else error
        raise unreadable(
            path,
            _DOING,
            f"torch.export.load raised {error_text(reason)}",
            "write it again with torch.export.save(program, path), by this torch or an older one",
        ) from error


def _check(file: IO[bytes], path: object, *, trusted: bool) -> list[str]:
    """Check that a file is complete, claims no more bytes than it has, and makes torch run nothing.

    Returns:
        The names of the programs in it; empty for the older format, which has no names.
    """
    size = file.seek(0, io.SEEK_END)
    with open_archive(file) as archive:
        names = archive.namelist()
        claimed = sum(entry.file_size for entry in archive.infolist())
        if len({name.casefold() for name in names}) < len(names):
            raise unreadable(path, _DOING, "two of its entries have the same name", DAMAGED)
        if claimed > size:
            why = f"its entries claim {claimed:,} bytes, and the file has {size:,}"
            raise unreadable(path, _DOING, why, DAMAGED)
        if not any(map(holds_model, names)):
            why = "it is a zip file, and contains no program"
            raise unreadable(path, _DOING, why, "torch.export.save(program, path) writes one")
        for name in names:
            if holds_model(name):
                _check_formulas(archive.read(name), name, path)
            elif not trusted:
                _check_entry(archive, name, path)
    return [match[1] for name in names if (match := _NAMED.search(name)) is not None]


def _check_entry(archive: zipfile.ZipFile, name: str, path: object) -> None:
    """Check that an entry makes torch run no code."""
    what = ""
    if _COMPILED.search(name):
        what = "compiled code, which torch would load"
    elif _OBJECT.search(name):
        what = "an object that torch would unpickle"
    elif _CONFIG.search(name):
        config = json.loads(archive.read(name)).get("config", {})
        if any(entry.get("use_pickle") for entry in config.values()):
            what = "tensors that torch would unpickle"
    elif _PICKLED.search(name) and not _is_data(archive.read(name)):
        what = "objects that torch would unpickle"
    if what:
        raise unreadable(
            path,
            _DOING,
            f"its entry {shown(name)} contains {what}, which runs code of the file's author",
            "if you trust the author: tbscope.from_export(path, trusted=True)",
        )


def _is_data(content: bytes) -> bool:
    """Whether a pickle contains only tensors, numbers, texts and plain containers."""
    if not content:
        return True
    try:
        torch.load(io.BytesIO(content), map_location="meta", weights_only=True)
    except Exception:  # noqa: BLE001 (after any error torch would unpickle it fully)
        return False
    return True


def _check_formulas(content: bytes, name: str, path: object) -> None:
    """Check that the formulas of sizes are formulas: torch evaluates them as Python."""
    for formula in _formulas(json.loads(content)):
        if type(formula) is not str or not is_size_formula(formula):
            raise unreadable(
                path,
                _DOING,
                f"its entry {shown(name)} has the size {shown(formula)}, which is no formula",
                "ask its author for a file that torch.export.save has written",
            )


def _formulas(data: object) -> Iterator[object]:
    """Yield the formulas of sizes in nested JSON; torch writes each of them as a text."""
    pending = [data]
    while pending:
        entry = pending.pop()
        if isinstance(entry, dict):
            if "expr_str" in entry:
                yield entry["expr_str"]
            constraints = entry.get("range_constraints")
            yield from constraints if isinstance(constraints, dict) else ()
            pending += entry.values()
        elif isinstance(entry, list):
            pending += entry


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
# The name of a symbol, or a number; either may be in quotes.
_ATOM = re.compile(r"[A-Za-z_]\w{0,99}|-?[0-9.]{1,40}(e[+-]?[0-9]{1,3})?")


@functools.lru_cache(maxsize=4096)
def is_size_formula(text: str) -> bool:
    """Whether a text is a formula of sizes, and nothing else that Python would run.

    >>> is_size_formula("Mul(Integer(2), Symbol('s11', positive=True, integer=True))")
    True
    """
    try:
        return all(map(_is_formula, ast.walk(ast.parse(text, mode="eval"))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_formula(node: ast.AST) -> bool:
    """Whether a syntax node, apart from the nodes below it, may be part of a formula."""
    match node:
        case ast.Call(func=function):
            return isinstance(function, ast.Name) and function.id in _FUNCTIONS
        case ast.Constant(value=atom) | ast.Name(id=atom):
            return _ATOM.fullmatch(str(atom)) is not None and "__" not in str(atom)
    return isinstance(node, _PARTS)


_PARTS = (
    *(ast.Expression, ast.keyword, ast.UnaryOp, ast.BinOp, ast.Compare),
    *(ast.unaryop, ast.operator, ast.cmpop, ast.expr_context),
)


@contextmanager
def _quiet() -> Iterator[list[BaseException]]:
    """Suppress torch's log of errors, and its warnings, during a block.

    Returns:
        The errors that torch would have logged; the list grows during the block.
    """
    raised: list[BaseException] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            raised.append(record.exc_info[1])
        return False

    loggers = [logging.getLogger(f"torch.{name}") for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(keep)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield raised
    finally:
        for logger in loggers:
            logger.removeFilter(keep)


_LOGGERS = ("export", "export.pt2_archive._package", "_export.serde.serialize")
