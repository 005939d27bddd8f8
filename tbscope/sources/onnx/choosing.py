"""Which modules become functions, and in which domain: what the user may give for it."""

import re
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from typing import TypeAlias

from tbscope.checks import ask
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Module
from tbscope.sources.onnx.metadata import Level
from tbscope.sources.onnx.scoping import label_of
from tbscope.words import shown

__all__ = ["Modules", "check_domain", "chooser"]

Modules: TypeAlias = "Collection[type | str] | type | str | Callable[[Module], object] | None"
"""Which modules become functions: classes, names and patterns of names, or a function of a
`Module`, which has its qualified name and the full name of its class. None for all inside the
model."""

_LONGEST_PATTERN = 1000
_DOMAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


def chooser(modules: Modules) -> "Callable[[Level], bool]":
    """Return what tells whether a module is meant.

    Raises:
        ArgumentError: It tells no modules.
    """
    if modules is None:
        return lambda level: bool(level.name)
    if isinstance(modules, str | type | list | tuple | set | frozenset):
        return _listed([modules] if isinstance(modules, str | type) else modules)
    if not callable(modules):
        raise _no_modules(modules)

    def means(level: Level) -> bool:
        return bool(
            ask(
                modules,
                Module(level.name, level.class_name or "", ()),
                option="modules",
                place=shown(level.name),
                fix="give True or False for each Module",
            )
        )

    return means


def _listed(modules: Collection[type | str]) -> "Callable[[Level], bool]":
    """Return what tells whether a module is one of a list."""
    classes: set[str] = set()
    patterns: list[str] = []
    for each in modules:
        if isinstance(each, type):
            classes.add(f"{each.__module__}.{each.__qualname__}")
        elif isinstance(each, str):
            patterns.append(str.__str__(each))
        else:
            raise _no_modules(each)

    def means(level: Level) -> bool:
        full = level.class_name or ""
        return full in classes or any(
            pattern in (full, label_of(full))
            or (len(pattern) <= _LONGEST_PATTERN and fnmatchcase(level.name, pattern))
            for pattern in patterns
        )

    return means


def _no_modules(given: object) -> ArgumentError:
    return ArgumentError(
        f"modules={shown(given)} tells no modules",
        why="they are told by classes and names, in a list, or by a function of a Module",
        fix="modules={Layer, 'layers.*'}, or modules=lambda module: 'attn' in module.name",
    )


def check_domain(domain: object) -> str:
    """Return a domain as a plain text, if functions can be of it.

    Raises:
        ArgumentError: It is no name, or that of ONNX's own operators.
    """
    plain = str.__str__(domain) if isinstance(domain, str) else ""
    if not _DOMAIN.fullmatch(plain) or plain == "ai.onnx":
        raise ArgumentError(
            f"domain={shown(domain)} cannot be that of functions",
            why="it is a name of letters, digits, dots and dashes, and not that of ONNX itself",
            fix="domain='my.model'",
        )
    return plain
