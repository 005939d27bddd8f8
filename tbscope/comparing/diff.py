"""`tbscope.diff`: any two things that a graph can be made of, compared."""

from typing import Any, Unpack

from tbscope.collector import collecting_rarely
from tbscope.comparing.difference import Difference
from tbscope.comparing.reading import reading_of
from tbscope.option import shows_options
from tbscope.running import Tracing, run_options
from tbscope.sources.table import graph_of, load, runs

__all__ = ["diff"]


@shows_options
def diff(before: Any, after: Any, input_to_model: Any = None, **run: Unpack[Tracing]) -> Difference:
    """Tell how two models differ: what was added, removed and changed from one to the other.

    Module calls and operations are matched by name and by structure, so that a renamed or an
    inserted block does not make everything differ.

    Args:
        before: A model; a `Graph`; the path of a file or of a log directory, or anything else
            that `tbscope.load` takes.
        after: The other one, in any of these forms.
        input_to_model: The inputs with which those run that are models, as for `tbscope.trace`.
        run: How they run, as for `tbscope.trace`.
    Returns:
        The difference: true where there is one. Its text tells it; `changes`, `added`, `removed`,
        `changed` and `same` list it; `graph` is the union of both, to be drawn.
    Raises:
        ArgumentError: One of them holds no graph, or several; or inputs are given, and none of
            them runs.
        InputError: The inputs do not fit forward.
        TraceError: A model raised.
    """
    how = run_options(run)
    with collecting_rarely():
        both = [graph_of(one, input_to_model, how) if runs(one) else one for one in (before, after)]
        if not any(map(runs, (before, after))):
            # What tells how nothing runs is refused.
            graph_of(load(before), input_to_model, how)
        return Difference(*(reading_of(load(one)) for one in both))
