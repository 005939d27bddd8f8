"""`tbscope export`: writes the graph of a model, for TensorBoard or in any other form."""

from typing import Any

import click

from tbscope.cli.command_errors import command
from tbscope.cli.log_folder import (
    changed_options,
    drawing_options,
    opening_line,
    take_drawing,
    write_log,
)
from tbscope.cli.output import check_folder, give_document, put_in_file, say
from tbscope.cli.parameters import (
    OutputFile,
    flag_of,
    library_options,
    parse_folder,
    parse_output,
    takes,
)
from tbscope.cli.run_target import graph_of_target, takes_a_target
from tbscope.options import PLACING
from tbscope.utils.option import check_values, take_values

FORMS_HELP = (
    ".html (a page with boxes that open), .dot, .svg and .png (by Graphviz), .mmd (Mermaid), "
    ".json (all of it, to be read again), .pbtxt and .pb (a GraphDef as text and in binary form)"
)
"""The list of forms in the help."""


@command
@takes_a_target
@takes(
    click.option(
        "--logdir",
        type=parse_folder,
        metavar="FOLDER",
        help="Write an event file for TensorBoard into this folder.",
    ),
    click.option(
        "-o",
        "--output",
        "outputs",
        type=parse_output,
        multiple=True,
        metavar="FILE",
        help=f"Write the graph, in the form of the name's ending: {FORMS_HELP}, "
        "- for a GraphDef as text on standard output, an ending alone (.mmd) for another text "
        "there.  [repeatable]",
    ),
    click.option(
        "--depth",
        type=click.IntRange(min=0),
        metavar="N",
        help="In .dot, .svg, .png and .mmd: the number of open boxes around the innermost "
        "nodes.  [default: all, or as many as fit a page]",
    ),
    *library_options(PLACING),
    *drawing_options(),
)
def export(
    *,
    logdir: str | None,
    outputs: tuple[OutputFile, ...],
    overlays: tuple[str, ...],
    depth: int | None,
    **options: Any,
) -> None:
    """Write the graph of a model: for TensorBoard, as a page, a picture or a GraphDef.

    TARGET is package.module:NAME or path/to/file.py:NAME, where NAME is a model, or a function
    or class that makes one; or the path of a graph: a log directory or an event file, followed by
    :TAG or :TAG@STEP if it contains several graphs, a GraphDef, or any file that tbscope.load
    takes.

    \b
    tbscope export torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3 --logdir runs/linear
    tbscope export nets.py:make_model -i ids=2x128:int64 -o graph.pbtxt
    tbscope export nets.py:make_model -i 1x3 -o graph.html -o README.mmd
    tbscope export runs/net:Default -o graph.html
    tbscope export model.onnx -o net.svg --depth 1
    tbscope export nets.py:make_model -i 1x3 --logdir runs/net --tag large --overlay flops
    """  # noqa: D301
    placing = take_values(PLACING, options)
    _check_use(logdir, outputs, overlays, depth, placing)
    drawing = take_drawing(options)
    check_values(PLACING, placing)
    for output in outputs:
        if output.path is not None:
            check_folder(output.path)
    from tbscope.overlays.overlay import make_overlay
    from tbscope.pipeline import to_graph_def
    from tbscope.saving.save import data_of

    graph = graph_of_target(**options, kernels=drawing["level"] == "aten")
    made = []
    # All steps that may fail come before the first byte is written.
    for name in overlays:
        make_overlay(graph, name)
    if logdir is not None:
        to_graph_def(graph, **drawing)
    for output in outputs:
        form = output.form
        how: Any = changed_options(drawing) if form.draws else {}
        data = data_of(graph, form, depth if form.cuts else None, how)
        made.append((output.path, data))
    for path, data in made:
        if path is None:
            give_document(data)
        else:
            put_in_file(path, data)
    if logdir is not None:
        write_log(graph, logdir, drawing, placing=placing, overlays=overlays)
        # If the graph itself goes to standard output, nothing else may.
        say(opening_line(logdir), err=any(output.path is None for output in outputs))


def _check_use(
    logdir: str | None,
    outputs: tuple[OutputFile, ...],
    overlays: tuple[str, ...],
    depth: int | None,
    placing: dict[str, Any],
) -> None:
    """Refuse options that do not go together, before anything runs."""
    if logdir is None and not outputs:
        raise click.UsageError("Nothing to write: give --logdir FOLDER, -o FILE, or both.")
    if logdir is None:
        flags = [flag_of(name) for name, value in placing.items() if value is not None]
        flags += ["--overlay"] if overlays else []
        if flags:
            raise click.UsageError(f"{flags[0]} is for TensorBoard: give --logdir FOLDER, too.")
    if placing["tag"] in overlays:
        raise click.UsageError(
            f"--tag and --overlay are both {placing['tag']!r}: a tag has one graph."
        )
    if depth is not None and not any(output.form.cuts for output in outputs):
        from tbscope.saving.save import FORMS

        cutting = ", ".join(form.suffix for form in FORMS if form.cuts)
        raise click.UsageError(f"--depth is for {cutting}: give such a file to -o.")
