"""Where in the page's lists a graph can stand: tags, steps, and the names of runs."""

import re
from typing import Any

from tbscope.checks import is_text
from tbscope.errors import ArgumentError
from tbscope.words import shown

__all__ = ["LAST_STEP", "check_run_name", "check_step", "check_tag"]

# TensorBoard's server finds no graph whose run or tag JSON escapes: the page asks in vain (the
# keys of tensorboard/data/server/blob_key.rs).
_ESCAPED = r'"\\\x00-\x1f'
_NO_TAG = re.compile(f"[{_ESCAPED}]")
# And drives of another system's paths.
_NO_NAME = re.compile(f"[:{_ESCAPED}]")

# The page asks for a graph by an address that holds its tag.
_MOST_TAG = 1_000
# What file systems allow for one part of a path, in bytes.
_MOST_PART = 255

LAST_STEP = 2**63 - 2
"""The highest step: what reads it may count one further, in 64 bits."""


def check_tag(tag: Any) -> None:
    """Raise ArgumentError unless a graph can have this tag, or None for that of the run."""
    if tag is not None and not (is_text(tag) and _is_tag(str.__str__(tag))):
        raise ArgumentError(
            f"a graph cannot have the tag {shown(tag)}",
            why=f"a tag is a text that is not blank, of at most {_MOST_TAG} characters, and "
            'without ", \\, control characters and lone surrogates',
            fix="tag='generator', or None for the graph of the run",
        )


def _is_tag(tag: str) -> bool:
    return bool(tag.strip()) and len(tag) <= _MOST_TAG and not _NO_TAG.search(tag)


def check_step(step: object) -> None:
    """Raise ArgumentError unless a graph can be of this step, or None for the next one."""
    if step is not None and (type(step) is not int or not 0 <= step <= LAST_STEP):
        raise ArgumentError(
            f"a graph cannot be of step {shown(step)}",
            why="a step is a whole number, an int from 0 to 2**63 - 2",
            fix="step=None for one after the latest",
        )


def check_run_name(run_name: object) -> None:
    """Raise ArgumentError unless a run can have this name, or None for the log directory itself."""
    if run_name is not None and not _is_run_name(run_name):
        raise ArgumentError(
            f"a run below the writer's own cannot be called {shown(run_name)}",
            why="it is a directory below the log directory, so its name is one part or more "
            "with / between them, none of them empty, '.' or '..', none of more than "
            f'{_MOST_PART} bytes, and without ", \\, : and control characters',
            fix="run_name='eval', or 'eval/large'",
        )


def _is_run_name(name: object) -> bool:
    if type(name) is not str or not is_text(name) or _NO_NAME.search(name):
        return False
    parts = name.split("/")
    return all(part.strip() not in ("", ".", "..") for part in parts) and all(
        len(part.encode()) <= _MOST_PART for part in parts
    )
