"""The graph of a TARGET: the shared options of commands that take targets, and the run itself.

A target is a model, which is run, or a written graph, which is read.
"""

import contextlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tbscope.cli.command_errors import with_input_option
from tbscope.cli.output import say
from tbscope.cli.parameters import (
    Command,
    GraphPath,
    HubConfig,
    InputSpec,
    ModelSpec,
    Target,
    flag_of,
    library_options,
    parse_factory_argument,
    parse_input,
    parse_maker,
    parse_target,
    takes,
)
from tbscope.errors import TraceError
from tbscope.messages import error_text
from tbscope.run_options import RUNNING

if TYPE_CHECKING:
    from tbscope.ir.graph import Graph


IN_OTHER_WORDS = {
    **dict.fromkeys(("kwargs", "input_size", "dtypes"), ("--input",)),
    "training": ("--eval", "--training", "--as-is"),
    "loss": ("--loss",),
}
"""The options of the library's runs that the command replaces by flags of its own."""

# The value of the option `training` for each mode.
_MODES = {None: False, "eval": False, "training": True, "as-is": None}
_MOST_NOTES = 10


_RUN_OPTIONS: list[Callable[[Command], Command]] = [
    click.option(
        "-i",
        "--input",
        "inputs",
        type=parse_input,
        multiple=True,
        metavar="[NAME=]SHAPE[:DTYPE]",
        help="A tensor for the model: 1x3x224x224, ids=2x128:int64 for a keyword "
        "argument, scalar for no dimension. Floats are normal, whole numbers 0 or 1. "
        "Without it, the model's own example inputs are used, if it has some.  "
        "[repeatable]",
    ),
    click.option(
        "--inputs",
        "inputs_from",
        type=parse_maker,
        metavar="FILE:NAME",
        help="A function that makes the inputs, as path/to/file.py:make_inputs, or their "
        "name: a tensor, a tuple of them, or a mapping from names.",
    ),
    click.option("--method", metavar="NAME", help="Run this method in place of forward: encode."),
    click.option(
        "-a",
        "--arg",
        "arguments",
        type=parse_factory_argument,
        multiple=True,
        metavar="NAME=VALUE",
        help="Argument of the function or class that makes the model, or setting of a "
        "config: a Python literal, or else a text.  [repeatable]",
    ),
    click.option("--download", is_flag=True, help="Let hf:NAME download the config of its model."),
    click.option(
        "--seed",
        type=click.IntRange(-(2**63), 2**64 - 1),
        default=0,
        show_default=True,
        help="Seed of the inputs and of the model's random weights.",
    ),
    click.option("--eval", "mode", flag_value="eval", help="Run in evaluation mode, the default."),
    click.option("--training", "mode", flag_value="training", help="Run in training mode."),
    click.option(
        "--as-is",
        "mode",
        flag_value="as-is",
        help="Run in the mode that the model is in when it is made.",
    ),
    click.option(
        "--loss",
        "loss_from",
        type=parse_maker,
        metavar="FILE:NAME",
        help="A function from the model's results to a loss, as "
        "path/to/file.py:make_loss: it is drawn, too.",
    ),
    *library_options(RUNNING, without=IN_OTHER_WORDS),
]


def takes_targets(*names: str) -> Callable[[Command], Command]:
    """Add arguments that are targets, and the options of a run: inputs, factory, mode.

    Args:
        names: The names of the arguments, as `graph_of_target` takes them one by one.
    """
    return takes(*(click.argument(name, type=parse_target) for name in names), *_RUN_OPTIONS)


takes_a_target = takes_targets("target")
"""Adds the argument TARGET, and the options of a run."""


def graph_of_target(target: Target, **run: Any) -> "Graph":
    """Return the graph of a target, and print its notes on standard error.

    A model is made with its inputs, and run; a written graph is read.

    Args:
        target: The model, or the path of a graph.
        run: The options of a run, by their names in the command.
    Raises:
        TbscopeError: The model is not found, or raised; or the file contains no graph.
    """
    if isinstance(target, GraphPath):
        refuse_run_options(target, run)
        graph = _read_graph(target)
    else:
        graph = _graph_of_model(target, **run)
    # Notes on missing FLOPs are in the footer of tables of FLOPs, and concern no other output.
    notes = list(dict.fromkeys(str(note) for note in graph.notes if note.topic != "flops"))
    for note in notes[:_MOST_NOTES]:
        say(f"note: {note}", err=True)
    if len(notes) > _MOST_NOTES:
        say(f"note: and {len(notes) - _MOST_NOTES} more, in graph.notes", err=True)
    return graph


def _graph_of_model(
    target: ModelSpec | HubConfig,
    *,
    inputs: tuple[InputSpec, ...],
    arguments: tuple[tuple[str, Any], ...],
    seed: int,
    mode: str | None,
    inputs_from: ModelSpec | None,
    loss_from: ModelSpec | None,
    method: str | None,
    download: bool,
    **how: Any,
) -> "Graph":
    """Make a model with its inputs, run it, and return the graph.

    Args:
        target: The model or its factory, or a config.
        inputs: The tensors to make up.
        arguments: The keyword arguments of the factory.
        seed: The seed of the weights and the inputs.
        mode: "eval", "training" or "as-is"; None for "eval".
        inputs_from: The function that makes the positional inputs; None for those of `inputs`.
        loss_from: The function from the results to a loss; None for no loss.
        method: The method that runs in place of forward.
        download: Whether the config of a model may be downloaded.
        how: Further options of `trace`.
    """
    names = [spec.name for spec in inputs]
    for name in names:
        if name and names.count(name) > 1:
            raise click.UsageError(f"--input gives {name!r} twice.")
    if inputs_from is not None and None in names:
        raise click.UsageError(
            "--inputs gives all positional inputs: beside it, --input needs names."
        )
    if download and not isinstance(target, HubConfig):
        raise click.UsageError("--download is for hf:NAME.")
    import torch

    from tbscope.cli import target as targets
    from tbscope.sources.eager.trace import trace

    torch.manual_seed(seed)
    if isinstance(target, HubConfig) and target.fake:
        how["fake"] = True
    fake = bool(how.get("fake"))
    # Prints of the model must not mix with the command's own output.
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as stack:
        for spec in (loss_from, inputs_from, target):
            if isinstance(spec, ModelSpec):
                stack.enter_context(targets.import_path(spec))
        if isinstance(target, HubConfig):
            model = targets.load_hub_model(target, dict(arguments), download=download, meta=fake)
        else:
            model = targets.load_model(target, dict(arguments))
        called = targets.find_method(model, method, target) if method else model
        loaded: Any = None if inputs_from is None else targets.load_inputs(inputs_from)
        how["loss"] = None if loss_from is None else targets.load_loss(loss_from)
        with with_input_option(inputs):
            positional, named = targets.make_inputs(inputs, model, seed=seed, fake=fake)
            if inputs_from is None:
                made_up = isinstance(target, HubConfig) and not inputs
                loaded = targets.example_input(model) if made_up else positional
            try:
                return trace(called, loaded, kwargs=named or None, training=_MODES[mode], **how)
            except SystemExit as error:
                # An exit of the model must not become the exit code of the command.
                subject = str(target)
                if isinstance(target, ModelSpec):
                    subject = f"{target.attribute!r} in {target.source!r}"
                raise TraceError(
                    f"{subject} ended the process while it ran",
                    why=error_text(error),
                    fix="take sys.exit() out of the model; add --debug to see where",
                ) from error


def graphs_of_targets(targets: Sequence[Target], **run: object) -> "list[Graph]":
    """Return the graphs of several targets: all models run with the same options.

    Args:
        targets: The models or written graphs.
        run: The options of a run, as for `graph_of_target`.
    """
    # If one target is a model, the options are for it, and do not refuse a written graph.
    read = run if all(isinstance(target, GraphPath) for target in targets) else {}
    return [
        graph_of_target(target, **(read if isinstance(target, GraphPath) else run))
        for target in targets
    ]


def refuse_run_options(target: GraphPath, options: Mapping[str, Any]) -> None:
    """Refuse options of a run for a written graph, whose model has run already.

    Args:
        target: The path of the graph.
        options: The options, under the names of their parameters.
    Raises:
        click.UsageError: An option is set.
    """
    flags = {
        "inputs": "input",
        "inputs_from": "inputs",
        "loss_from": "loss",
        "arguments": "arg",
        "mode": options.get("mode"),
    }
    for name, value in options.items():
        if value and name not in ("kernels", "seed"):
            flag = flag_of(flags.get(name) or name)
            raise click.UsageError(f"{flag} is for a model that runs, and {target.path!r} is read.")


def _read_graph(target: GraphPath) -> "Graph":
    from tbscope.sources.logs.reading import logged_graph
    from tbscope.sources.registry import load

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        tag = target.tag
        graph = load(target.path) if tag is None else logged_graph(target.path, tag)
    for warning in warned:
        say(f"note: {warning.message}", err=True)
    return graph
