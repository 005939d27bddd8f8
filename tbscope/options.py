"""Options: every choice that a user has about a graph, declared once.

The signatures of the library, the options of the command and the table in docs/options.md
tell what stands here: names, types and defaults, and a line on each. Tests hold them to it.
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
    "check_gathering",
    "check_on_error",
    "check_options",
    "check_placing",
    "check_run_name",
    "check_step",
    "check_tag",
    "with_defaults",
]

Leaves: TypeAlias = Literal["node", "box"]
"""How a module of one operation is drawn: as that node, or as a box around it."""

OnError: TypeAlias = Literal["raise", "warn"]
"""What becomes of an error: it is raised, or warned of once."""


# -- places ---------------------------------------------------------------------------------

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
    text = str.__str__(tag) if is_text(tag) else ""
    if tag is not None and (not text.strip() or len(text) > _MOST_TAG or _NO_TAG.search(text)):
        raise ArgumentError(
            f"a graph cannot have the tag {shown(tag)}",
            why=f"a tag is a text that is not blank, of at most {_MOST_TAG} characters, and "
            'without ", \\, control characters and lone surrogates',
            fix="tag='generator', or None for the graph of the run",
        )


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


# -- declarations ---------------------------------------------------------------------------


class Drawing(TypedDict, total=False):
    """How a graph is drawn: the options of `to_graph_def`, of which none is needed.

    Attributes:
        style: How names are made of scopes: "tf" (`layer1/0`), "torch"
            (`Net/Sequential[layer1]/Linear[0]`), or a function that gives the whole name
            of a `Scope`.
        labels: Whether a module that its holder knows by a number alone (`layers/0`) tells its
            class, too: "class" (`layers/0_Block`), as style "torch" always does.
        root: Whether the one scope that holds all others is a box around everything. None:
            in style "torch", and where boxes below it are called by a number alone; but not
            where times, memory or an overlay are drawn, whose colours it would make pale.
        level: How far the drawing goes into detail: "overview" for equal blocks as one node
            (`layers.0-79`), "module" for the modules that call no
            others and the operations between them, "op" for operations as the user wrote
            them, "aten" for the kernels inside of each (`trace(..., kernels=True)`).
        leaves: "node" draws a module of one operation as one node, with its parameters as
            small circles beside it; "box" draws every module as a box.
        keep: Patterns of plumbing (views, casts, copies) that is drawn all the same.
        hide: Patterns of further operations and modules that are left out.
        dead: Whether operations that no output depends on are drawn: "keep" or "drop".
        color_by: What the page colours nodes by under "XLA cluster": "kind", "class",
            "trainable", "rank", "stage" of a pipeline, "mesh" for the dimension along which ranks
            do something together, "difference" (of the graph of a `Difference`), a mapping from
            names to labels, a function of a node, or "none".
        templates: Whether equal boxes are made to have equal colours, as Chrome, Edge and
            Safari need it. False for Firefox, which needs nothing.
        cards: Whether the box of each module holds a node that tells of it.
        helpers: Whether what one run of a helper function did is a box of its name, and one
            round of a loop a box `step.0`: "auto" where a level is too full for the page, "all"
            for every function that ran several operations too, "none" for none.
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
        Option("name", "Call modules in lists 0, or 0_Block with their class."),
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
            check=lambda keep: check_patterns(keep, ()),
        ),
    ]
    hide: Annotated[
        Sequence[str],
        Option(
            (),
            "Leave out operations of this name, or this module.",
            check=lambda hide: check_patterns((), hide),
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
            "What the page colours nodes by under 'XLA cluster'.",
            check=check_color_by,
        ),
    ]
    templates: Annotated[
        bool,
        Option(True, "Have equal boxes in equal colours; Firefox does so by itself."),
    ]
    cards: Annotated[
        bool, Option(True, "Put a node that tells of the module into the box of each module.")
    ]
    helpers: Annotated[
        Helpers,
        Option(
            "auto",
            "Draw what a helper function ran as a box: where a level is too full, always, never.",
        ),
    ]


class Placing(TypedDict, total=False):
    """Where in the page's lists a graph stands."""

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
            "Which of several graphs of one tag it is: the page shows the highest.",
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
    """Of which ranks of a distributed run a graph is."""

    ranks: Annotated[
        Ranks,
        Option(
            "mine",
            "Which ranks of a distributed run are drawn: mine, all, some, or all unfolded.",
            check=check_ranks,
        ),
    ]
    ranks_timeout: Annotated[
        float,
        Option(
            300.0, "For how many seconds other ranks are waited for.", check=check_ranks_timeout
        ),
    ]


class Adding(Running, World, Placing, Gathering, Drawing, total=False):
    """The options of `add_graph`."""


GATHERING: dict[str, Option] = declared_in(Gathering)
"""Of which ranks of a distributed run a graph is, by name."""

DRAWING: dict[str, Option] = declared_in(Drawing)
"""How a graph is drawn, by name."""

PLACING: dict[str, Option] = declared_in(Placing)
"""Where in the page's lists a graph stands, by name."""

# -- use ------------------------------------------------------------------------------------


def check_options(**drawing: Unpack[Drawing]) -> None:
    """Check how a graph is to be drawn, before anything has been run for it.

    Raises:
        ArgumentError: There is no such option, or one has a value that is none of its own.
    """
    unknown = sorted(drawing.keys() - DRAWING.keys())
    if unknown:
        name = unknown[0]
        # It may be one of a run.
        takers = "trace or add_graph" if name in RUNNING | WORLD else "add_graph"
        known = RUNNING | WORLD | PLACING | GATHERING
        fix = f"give {name}= to {takers}"
        if name not in known:
            fix = did_you_mean(name, known | DRAWING, f"leave {name} out", cutoff=0.7)
        raise ArgumentError(
            f"a graph cannot be drawn with {name}=",
            why=f"the options of a drawing are {', '.join(DRAWING)}",
            fix=fix,
        )
    check_values(DRAWING, drawing)


def with_defaults(drawing: Drawing) -> Drawing:
    """Return how a graph is drawn, with every option."""
    defaults: Any = {name: option.default for name, option in DRAWING.items()}
    options: Drawing = {**defaults, **drawing}
    return options


def check_placing(tag: object, step: object, run_name: object = None) -> None:
    """Raise ArgumentError unless these can be a tag, a step and the name of a run."""
    check_values(PLACING, {"tag": tag, "step": step, "run_name": run_name})


def check_on_error(on_error: object) -> None:
    """Raise ArgumentError unless this tells what becomes of an error."""
    check_choice("on_error", on_error, get_args(OnError))


def check_gathering(ranks: object, ranks_timeout: object) -> None:
    """Raise ArgumentError unless these can be asked of the ranks of a run."""
    check_values(GATHERING, {"ranks": ranks, "ranks_timeout": ranks_timeout})
