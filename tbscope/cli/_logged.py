"""Gets the one graph of a log that a target names by its tag and its step."""

import re
from typing import TYPE_CHECKING

from tbscope.errors import ArgumentError, NotFoundError
from tbscope.words import did_you_mean, shown

if TYPE_CHECKING:
    from tbscope.ir.graph import Graph
    from tbscope.sources.logs.reading import LoggedGraph

__all__ = ["DEFAULT", "logged_graph", "tag_text"]

DEFAULT = "Default"
"""What the page calls the graph of a run, which has no tag."""

_AT_STEP = re.compile(r"(.+)@(-?[0-9]{1,18})", re.DOTALL)


def logged_graph(path: str, tag: str) -> "Graph":
    """Return the graph of a log with a tag, the latest where no step is given.

    Args:
        path: An event file, or a log directory of one run.
        tag: A tag, or a tag and a step: `large`, `large@7`, `Default`.
    Raises:
        ArgumentError: It is no log, or several of its runs have such a graph.
        NotFoundError: It holds no such graph.
    """
    from tbscope.sources.logs.reading import read_log

    logged = read_log(path)
    found = _named(logged, tag)
    if not found:
        raise _not_there(logged, path, tag)
    runs = list(dict.fromkeys(one.run for one in found))
    if len(runs) > 1:
        raise ArgumentError(
            f"several runs of {shown(path)} have a graph {shown(tag)}",
            why=f"{', '.join(runs[:8])}{' and more' if len(runs) > 8 else ''} have one",
            fix=f"give the directory of one: {path.rstrip('/')}/{runs[-1]}:{tag}",
        )
    return max(enumerate(found), key=lambda pair: (pair[1].step, pair[0]))[1].graph


def tag_text(tag: str | None) -> str:
    """Return a tag as the page shows it."""
    return DEFAULT if tag is None else tag


def _named(logged: "list[LoggedGraph]", tag: str) -> "list[LoggedGraph]":
    """Return the graphs of a tag and a step; of a tag that is called so only where there is none.

    So each can be named: with its step.
    """
    at_step = _AT_STEP.fullmatch(tag)
    found: list[LoggedGraph] = []
    if at_step:
        name, step = at_step.groups()
        found = [one for one in logged if tag_text(one.tag) == name and one.step == int(step)]
    return found or [one for one in logged if tag_text(one.tag) == tag]


def _not_there(logged: "list[LoggedGraph]", path: str, tag: str) -> NotFoundError:
    at_step = _AT_STEP.fullmatch(tag)
    same = [one for one in logged if at_step and tag_text(one.tag) == at_step[1]]
    if at_step and same:
        steps = ", ".join(map(str, dict.fromkeys(one.step for one in same[:8])))
        return NotFoundError(
            f"the tag {shown(at_step[1])} has no graph of step {at_step[2]} in {shown(path)}",
            why=f"its steps are {steps}{' and more' if len(same) > 8 else ''}",
            fix=f"tbscope ls {path} lists them",
        )
    tags = dict.fromkeys(tag_text(one.tag) for one in logged)
    return NotFoundError(
        f"no graph is tagged {shown(tag)} in {shown(path)}",
        fix=did_you_mean(tag, tags, f"tbscope ls {path} lists all"),
    )
