"""Options: every choice that a user has about a graph, declared once.

A declaration has a name, a type, a default and one line of help. The signatures of the library,
the options of the command and the table in docs/options.md are made of them or compared with
them by tests.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, Unpack, get_args

from tbscope.drawing.categories import ColorBy, check_color_by
from tbscope.drawing.naming import Labels, Style, check_style
from tbscope.drawing.placement.containers import Helpers
from tbscope.errors import ArgumentError
from tbscope.messages import did_you_mean, shown
from tbscope.passes.dead_code import Dead
from tbscope.passes.detail_level import Level
from tbscope.passes.hide_views import check_patterns
from tbscope.ranks.rank_options import Ranks, check_ranks, check_ranks_timeout
from tbscope.run_options import RUNNING, WORLD, Running, World
from tbscope.utils.option import Option, check_values, declared_in
from tbscope.utils.validation import check_choice, is_text

__all__ = [
    "DRAWING",
    "GATHERING",
    "LAST_STEP",
    "PLACING",
    "Adding",
    "Drawing",
    "Gathering",
    "Leaves",
    "OnError",
    "Placing",
    "check_on_error",
    "check_options",
    "check_run_name",
    "check_step",
    "check_tag",
    "with_defaults",
]

Leaves: TypeAlias = Literal["node", "box"]
"""How a module of one operation is drawn: as that node, or as a box around it."""

OnError: TypeAlias = Literal["raise", "warn"]
"""Whether an error is raised, or one warning reports it."""


# -- places ---------------------------------------------------------------------------------

# TensorBoard's server does not find a graph whose run or tag has characters that JSON escapes
# (the keys of tensorboard/data/server/blob_key.rs), so the page would show nothing.
_ESCAPED = r'"\\\x00-\x1f'
_NO_TAG = re.compile(f"[{_ESCAPED}]")
# A `:` is refused, too: Windows reads it as the end of a drive's name.
_NO_NAME = re.compile(f"[:{_ESCAPED}]")

# The page requests a graph by a URL that contains its tag.
_MOST_TAG = 1_000
# The limit of file systems for one component of a path, in bytes.
_MOST_PART = 255

LAST_STEP = 2**63 - 2
"""The highest step: a reader may add one to it, in a signed 64-bit number."""


def check_tag(tag: Any) -> None:
    """Raise ArgumentError unless a graph can have this tag; None is the graph of the run."""
    text = str.__str__(tag) if is_text(tag) else ""
    if tag is not None and (not text.strip() or len(text) > _MOST_TAG or _NO_TAG.search(text)):
        raise ArgumentError(
            f"a graph cannot have the tag {shown(tag)}",
            why=f"a tag is a text that is not blank, of at most {_MOST_TAG} characters, and "
            'without ", \\, control characters and lone surrogates',
            fix="tag='generator', or None for the graph of the run",
        )


def check_step(step: object) -> None:
    """Raise ArgumentError unless a graph can have this step; None is the next step."""
    if step is not None and (type(step) is not int or not 0 <= step <= LAST_STEP):
        raise ArgumentError(
            f"a graph cannot be of step {shown(step)}",
            why="a step is a whole number, an int from 0 to 2**63 - 2",
            fix="step=None for one after the latest",
        )


def check_run_name(run_name: object) -> None:
    """Raise ArgumentError unless a run can have this name; None is the log directory itself."""
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


# -- declarations ---------------------------------------------------------------------------


class Drawing(TypedDict, total=False):
    """Options of the drawing of a graph, as `to_graph_def` takes them; all are optional.

    >>> import torch, tbscope
    >>> graph = tbscope.trace(torch.nn.Sequential(torch.nn.ReLU()), torch.rand(3))
    >>> options: tbscope.Drawing = {"style": "torch", "leaves": "box", "cards": False}
    >>> [node.name for node in tbscope.to_graph_def(graph, **options).node]
    ['input', 'Sequential/ReLU[0]/relu', 'out']

    Attributes:
        style: The form of names: "tf" (`layer1/0`), "torch"
            (`Net/Sequential[layer1]/Linear[0]`), or a function that returns the whole name
            of a `Scope`.
        labels: The name of a module: "name" for its attribute alone (`layers/0`), "class"
            for attribute and class (`layers_ModuleList/0_Block`), as style "torch" always has it.
        root: Whether the single outermost scope is drawn as a box around everything. None: in
            style "torch", and if boxes below it have a number alone as their name; but not if
            times, memory or an overlay are drawn, whose colours it would make pale.
        level: The amount of detail: "overview" for equal blocks as one node
            (`layers.0-79`), "module" for the modules that call no
            others and the operations between them, "op" for operations as the user wrote
            them, "aten" for the kernels inside of each (`trace(..., kernels=True)`).
        leaves: "node" draws a module of one operation as one node, with its parameters as
            small circles (constant nodes) beside it; "box" draws every module as a box.
        keep: Patterns of plumbing (views, casts, copies) that is drawn all the same.
        hide: Patterns of further operations and modules that are left out.
        dead: Whether operations that no output depends on are drawn: "keep" or "drop".
        color_by: The property by which the page colours nodes under "XLA cluster": "kind",
            "class", "trainable", "rank", "stage" of a pipeline, "mesh" for the dimension along
            which ranks communicate, "difference" (of the graph of a `Difference`), a mapping from
            names to labels, a function of a node, or "none".
        templates: Whether equal boxes are made to have equal colours, which Chrome, Edge and
            Safari need. Firefox compares boxes in another order (docs/page.md).
        cards: Whether the box of each module contains a node whose info card describes it.
        helpers: Whether the operations of one call of a helper function are in a box of its
            name, and those of one iteration of a loop in a box `step.0`: "auto" on levels that
            are too full for the page, "all" also for every function that ran several operations,
            "none" never.
    """

    style: Annotated[
        Style,
        Option(
            "tf",
            "Names like layer1/0 (tf) or Net/Sequential[layer1]/Linear[0] (torch).",
            check=check_style,
        ),
    ]
    labels: Annotated[
        Labels,
        Option("name", "Name modules 0, or 0_Block with their class."),
    ]
    root: Annotated[
        bool | None,
        Option(
            None,
            "Draw a box around everything, or none.",
            "in style torch, and around boxes called by a number",
        ),
    ]
    level: Annotated[
        Level,
        Option(
            "op",
            "Draw stacks of equal blocks, modules, operations, or the kernels inside of them.",
        ),
    ]
    leaves: Annotated[
        Leaves,
        Option(
            "node",
            "Draw a module that runs one operation as a node or as a box.",
        ),
    ]
    keep: Annotated[
        Sequence[str],
        Option(
            (),
            "Draw views, casts and copies of this name or in this module.",
            check=lambda keep: check_patterns("keep", keep),
        ),
    ]
    hide: Annotated[
        Sequence[str],
        Option(
            (),
            "Leave out operations of this name, or this module.",
            check=lambda hide: check_patterns("hide", hide),
        ),
    ]
    dead: Annotated[
        Dead,
        Option("keep", "Draw or drop operations that no output depends on."),
    ]
    color_by: Annotated[
        ColorBy | None,
        Option(
            "kind",
            "The property by which the page colours nodes under 'XLA cluster'.",
            check=check_color_by,
        ),
    ]
    templates: Annotated[
        bool,
        Option(True, "Colour equal boxes equally in Chrome, Edge and Safari."),
    ]
    cards: Annotated[
        bool, Option(True, "Put a node with an info card of the module into each module's box.")
    ]
    helpers: Annotated[
        Helpers,
        Option(
            "auto",
            "Draw calls of helper functions as boxes: on levels that are too full, always, never.",
        ),
    ]


class Placing(TypedDict, total=False):
    """Options of the entry of a graph in the page's lists.

    Attributes:
        tag: The graph's entry in the page's list of tags, of which one run may have any
            number; None for the graph of the run, which the list calls "Default".
        step: The position among several graphs of one tag, of which the highest is shown. None:
            one after the latest that this process has written.
        run_name: A run of its own for the graph, as a path below the writer's log directory
            (`eval`); None for the writer's own run.
    """

    tag: Annotated[
        str | None,
        Option(
            None,
            "Entry of the graph in the page's list of tags.",
            "the graph of the run, 'Default'",
            check=check_tag,
        ),
    ]
    step: Annotated[
        int | None,
        Option(
            None,
            "The step among several graphs of one tag: the page shows the highest.",
            "after the latest",
            check=check_step,
        ),
    ]
    run_name: Annotated[
        str | None,
        Option(
            None,
            "A run of its own, as a path below the log folder.",
            "the log folder itself",
            check=check_run_name,
        ),
    ]


class Gathering(TypedDict, total=False):
    """Options of the ranks of a distributed run that a graph shows.

    Attributes:
        ranks: The ranks of a distributed run that are drawn. "mine" draws this rank alone; "all"
            or a list of numbers draws several ranks, equal ones merged into one; "unfolded" draws
            each of up to 64 in a box of its own. Every rank calls the function, the lowest of
            those drawn merges and writes, and the others need no writer. For a simulated run,
            the model is traced as each of these ranks in turn.
        ranks_timeout: The time in seconds for which the rank that draws waits for the others.
    """

    ranks: Annotated[
        Ranks,
        Option(
            "mine",
            "The ranks of a distributed run that are drawn: mine, all, some, or all unfolded.",
            check=check_ranks,
        ),
    ]
    ranks_timeout: Annotated[
        float,
        Option(
            300.0,
            "The seconds for which the drawing rank waits for others.",
            check=check_ranks_timeout,
        ),
    ]


class Adding(Running, World, Placing, Gathering, Drawing, total=False):
    """Options of `add_graph`: of the run, the simulated run, the place, the ranks, the drawing."""


GATHERING: dict[str, Option] = declared_in(Gathering)
"""The options of `Gathering`, by name."""

DRAWING: dict[str, Option] = declared_in(Drawing)
"""The options of `Drawing`, by name."""

PLACING: dict[str, Option] = declared_in(Placing)
"""The options of `Placing`, by name."""

# -- use ------------------------------------------------------------------------------------


def check_options(**drawing: Unpack[Drawing]) -> None:
    """Check the options of a drawing, before the model runs.

    Raises:
        ArgumentError: An option is unknown, or has a value that it does not take.
    """
    unknown = sorted(drawing.keys() - DRAWING.keys())
    if unknown:
        name = unknown[0]
        # An option of a run belongs in the call that runs the model.
        takers = "trace or add_graph" if name in RUNNING | WORLD else "add_graph"
        known = RUNNING | WORLD | PLACING | GATHERING
        fix = f"give {name}= to {takers}"
        if name not in known:
            known_names = [*known, *DRAWING, "on_error", "values", "input_to_model"]
            fix = did_you_mean(name, known_names, f"leave {name} out", cutoff=0.7)
        raise ArgumentError(
            f"a graph cannot be drawn with {name}=",
            why=f"the options of a drawing are {', '.join(DRAWING)}",
            fix=fix,
        )
    check_values(DRAWING, drawing)


def with_defaults(drawing: Drawing) -> Drawing:
    """Return the options of a drawing, with defaults for those that are missing."""
    defaults: Any = {name: option.default for name, option in DRAWING.items()}
    options: Drawing = {**defaults, **drawing}
    return options


def check_on_error(on_error: object) -> None:
    """Raise ArgumentError unless `on_error` is one of `OnError`."""
    check_choice("on_error", on_error, get_args(OnError))
