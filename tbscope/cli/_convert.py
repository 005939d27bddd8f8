"""`tbscope convert`: writes a graph that is in one form in another."""

from typing import Any

import click

from tbscope.cli._command import command
from tbscope.cli._drawn import changed, depth_option, put_outputs
from tbscope.cli._files import check_folder
from tbscope.cli._log import opening_line, write_log
from tbscope.cli._options import Command, decorate, library_options
from tbscope.cli._parameters import OutputFile, parse_folder, parse_output
from tbscope.cli._results import say
from tbscope.cli._running import graph_of_target, takes_a_target
from tbscope.cli._words import in_command_words
from tbscope.options import DRAWING, check_options

__all__ = ["convert"]


def _parse_out(text: str) -> str | OutputFile:
    """Read the name of a folder, which ends in `/`, or of a file."""
    return parse_folder(text) if text.endswith("/") else parse_output(text)


def _takes_a_drawing(command: Command) -> Command:
    return decorate(command, [depth_option, *library_options(DRAWING)])


@command
@takes_a_target
@click.argument("out", metavar="OUT", type=_parse_out)
@_takes_a_drawing
def convert(*, out: str | OutputFile, depth: int | None, **options: Any) -> None:
    """Write a graph that is in one form in another.

    TARGET is the path of a graph: a log directory or an event file, followed by :TAG or
    :TAG@STEP where it holds several graphs; a GraphDef (.pb, .pbtxt), a .json of tbscope's, an
    ONNX model, a program of torch.export or torch.jit. What it is, it tells itself. Or it is a
    model, as for `tbscope show`, which is run.

    The end of OUT tells its form: .html, .dot, .svg, .png, .mmd, .explorer.json, .json, .pbtxt,
    .pb, or / for a log directory. - is a GraphDef as text on standard output, and an end alone
    (.mmd) another text there.

    \b
    tbscope convert runs/net graph.html
    tbscope convert runs/net:Default graph.mmd --depth 1
    tbscope convert model.onnx net.svg --depth 1
    tbscope convert graph.json runs/again/
    tbscope convert graph.json .mmd
    """  # noqa: D301
    drawing = {name: options.pop(name) for name in DRAWING}
    given = changed(drawing)
    with in_command_words():
        check_options(**given)
    if isinstance(out, OutputFile) and out.path is not None:
        check_folder(out.path)
    elif not isinstance(out, OutputFile) and depth is not None:
        raise click.UsageError("--depth is for a picture: boxes open on TensorBoard's page.")
    graph = graph_of_target(**options, kernels=drawing["level"] == "aten")
    if not isinstance(out, OutputFile):
        write_log(graph, out, given)
        say(opening_line(out))
        return
    from tbscope.saving.forms import How, data_of, form_of

    with in_command_words():
        data = data_of(graph, form_of(out.name), How(depth, given))
    put_outputs([(out, data)])
