"""`tbscope.diff`: any two things that a graph can be made of, compared."""

from collections.abc import Mapping
from typing import Any

from tbscope.checks import Dtypes, InputSize
from tbscope.collector import collecting_rarely
from tbscope.comparing.difference import Difference
from tbscope.comparing.reading import reading_of
from tbscope.sources.table import graph_of, load, runs

__all__ = ["diff"]


def diff(
    before: Any,
    after: Any,
    input_to_model: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_size: InputSize | None = None,
    dtypes: Dtypes | None = None,
    training: bool | None = False,
    fake: bool = False,
) -> Difference:
    """Tell how two models differ: what was added, removed and changed from one to the other.

    Module calls and operations are matched by name and by structure, so that a renamed or an
    inserted block does not make everything differ.

    Args:
        before: A model; a `Graph`; the path of a file or of a log directory, or anything else
            that `tbscope.load` takes.
        after: The other one, in any of these forms.
        input_to_model: The inputs with which those run that are models, as for `tbscope.trace`.
        kwargs: Further keyword arguments of forward.
        input_size: In place of `input_to_model`, the size of an input to make up.
        dtypes: The element types of these inputs.
        training: Whether they run in training mode; None for the mode that they are in.
        fake: Whether they compute nothing but shapes.
    Returns:
        The difference: true where there is one. Its text tells it; `changes`, `added`, `removed`,
        `changed` and `same` list it; `graph` is the union of both, to be drawn.
    Raises:
        ArgumentError: One of them holds no graph, or several; or inputs are given, and none of
            them runs.
        InputError: The inputs do not fit forward.
        TraceError: A model raised.
    """
    run = {
        "kwargs": kwargs,
        "input_size": input_size,
        "dtypes": dtypes,
        "training": training,
        "fake": fake,
    }
    with collecting_rarely():
        both = [graph_of(one, input_to_model, run) if runs(one) else one for one in (before, after)]
        if not any(map(runs, (before, after))):
            # What tells how nothing runs is refused.
            graph_of(load(before), input_to_model, run)
        return Difference(*(reading_of(load(one)) for one in both))
