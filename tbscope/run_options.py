"""Options of a run: how a model runs while it is traced, and as which rank.

`trace` and `add_graph` take them by name; the command has other names for some of them.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypedDict

from tbscope.errors import ArgumentError
from tbscope.messages import did_you_mean
from tbscope.utils.option import Option, declared_in, take_values
from tbscope.utils.validation import Dtypes, InputSize

__all__ = ["RUNNING", "WORLD", "Running", "Tracing", "World", "run_options"]


class Running(TypedDict, total=False):
    """Options that say how a model runs while it is traced."""

    kwargs: Annotated[
        Mapping[str, Any] | None, Option(None, "Further keyword arguments of forward.", "no others")
    ]
    input_size: Annotated[
        InputSize | None,
        Option(
            None,
            "Sizes of inputs to make up, as in torchinfo: (1, 3, 224, 224).",
            "inputs are passed",
        ),
    ]
    dtypes: Annotated[
        Dtypes | None,
        Option(None, "Dtypes of the inputs of input_size.", "float32"),
    ]
    training: Annotated[
        bool | None,
        Option(False, "Run in training mode, or (None) in the current mode of each module."),
    ]
    grad: Annotated[bool, Option(False, "Enable gradients while it runs.")]
    loss: Annotated[
        Callable[[Any], Any] | None,
        Option(None, "A function from the model's result to a loss.", "no loss is drawn"),
    ]
    backward: Annotated[
        bool, Option(False, "Run and draw the backward pass, too, from the loss on.")
    ]
    fake: Annotated[
        bool, Option(False, "Compute shapes alone: no memory is allocated for activations.")
    ]
    partial: Annotated[
        bool,
        Option(
            False, "If the model raises, draw the graph up to the error, with a note, and go on."
        ),
    ]
    profile: Annotated[
        bool | int,
        Option(False, "Measure the time and the memory of each operation, in further runs."),
    ]


class World(TypedDict, total=False):
    """Options of a simulated distributed run, as a rank of which a model is traced."""

    world_size: Annotated[
        int | None,
        Option(
            None,
            "The number of ranks of a simulated run, as one of which the model is traced.",
            "the size of the mesh; without a mesh, no simulated run",
        ),
    ]
    rank: Annotated[int, Option(0, "The number of this rank in the simulated run.")]
    mesh: Annotated[
        Mapping[str, int] | None,
        Option(None, "The sizes of the dimensions of a device mesh over all ranks.", "no mesh"),
    ]
    parallelize: Annotated[
        Callable[[Any, Any], Any] | None,
        Option(
            None,
            "A function of a copy of the model and the mesh that spreads the copy over the ranks.",
            "the model runs as it is",
        ),
    ]


class Tracing(Running, World, total=False):
    """The options of `trace`."""

    kernels: Annotated[
        bool, Option(False, "Record the kernels inside of each operation, for level='aten'.")
    ]


RUNNING: dict[str, Option] = declared_in(Running)
"""The options of `Running`, by name."""

WORLD: dict[str, Option] = declared_in(World)
"""The options of `World`, by name."""

_TRACING = declared_in(Tracing)


def run_options(values: Tracing) -> dict[str, Any]:
    """Return the options of one run, with defaults for those that are missing.

    Raises:
        ArgumentError: An option is unknown.
    """
    others: dict[str, Any] = {**values}
    taken = take_values(_TRACING, others)
    for name in others:
        raise ArgumentError(
            f"a model cannot be run with {name}=",
            why=f"the options of a run are {', '.join(_TRACING)}",
            fix=did_you_mean(name, _TRACING, f"leave {name} out", cutoff=0.7),
        )
    return taken
