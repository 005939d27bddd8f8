"""Options of a run: how a model runs while it is traced, and as which rank.

`trace` and `add_graph` take them by name; the command has other names for some of them.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypedDict

from tbscope.errors import ArgumentError
from tbscope.messages import did_you_mean
from tbscope.utils.option import Option, check_values, declared_in, take_values
from tbscope.utils.validation import Dtypes, InputSize

__all__ = ["RUNNING", "WORLD", "Running", "Tracing", "World", "run_options"]


class Running(TypedDict, total=False):
    """Options of a run: how a model runs while it is traced; all are optional.

    Attributes:
        kwargs: Further keyword arguments of forward.
        input_size: In place of `input_to_model`, the size of a generated input, as in
            torchinfo: `(1, 3, 224, 224)`; a list of the sizes of several inputs, or a mapping
            from names of parameters. Floats are normally distributed, integers are 0 or 1.
        dtypes: The element types of these inputs: one for all, or one for each.
        training: Whether modules run in training mode; None for the present mode of each module.
        grad: Whether gradients are recorded, for models that differentiate in forward.
        loss: A function that computes a loss from the result of the model; its operations are
            part of the graph.
        backward: Whether the backward pass is run, too, from the loss, or from a scalar that the
            model returns: a tensor, or an entry called `loss`. Gradients are restored afterwards.
        fake: Whether the run computes only shapes, on fake tensors for parameters and inputs: no
            weights are read and no memory is allocated for activations.
        partial: Whether a model that raises results in the graph up to the error, with a note,
            and with the attribute `error` on the operation that raised.
        profile: Whether times and memory are measured, in further runs: True for 5 runs after 2
            to warm up, or the number of runs (see `Profile`). Each run is made twice: once
            unwatched, once timed, both with the loss and the backward pass. The page colours by
            them: a graph with a tag under "Profile", the graph of the run under the tag
            "profile".
    """

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
        Option(
            False,
            "Run in training mode, or (None) in the current mode of each module.",
            "the present mode of each module",
        ),
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
    """Options of a simulated distributed run, as a rank of which a model is traced.

    Attributes:
        world_size: The number of ranks: nothing is sent, and the values of tensors have no
            meaning. None for the size of the mesh, or for no simulated run if there is no mesh.
        rank: The rank that the model is traced as.
        mesh: The dimensions of a device mesh over all of these ranks, outermost first, with their
            sizes: `{"dp": 128, "tp": 8}`.
        parallelize: A function of the model and the device mesh that spreads the model over the
            ranks (`fully_shard`, `parallelize_module`), and returns the callable to run, or None.
            Its argument is a copy of the model, with `fake=True` a copy without contents.
    """

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
    """Options of `trace`: those of `Running` and of `World`, and one more.

    Attributes:
        kernels: Whether the kernels inside each operation are recorded as nodes, for
            `level="aten"`; the trace takes up to half as long again.
    """

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
        ArgumentError: An option is unknown, or is not True or False where it has to be.
    """
    others: dict[str, Any] = {**values}
    taken = take_values(_TRACING, others)
    for name in others:
        raise ArgumentError(
            f"a model cannot be run with {name}=",
            why=f"the options of a run are {', '.join(_TRACING)}",
            fix=did_you_mean(name, _TRACING, f"leave {name} out", cutoff=0.7),
        )
    check_values(_TRACING, taken)
    return taken
