"""The files that commands write of a graph, each in the form that the end of its name tells."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from tbscope.cli._files import put_in_file
from tbscope.cli._parameters import OutputFile
from tbscope.cli._results import give_document
from tbscope.cli._words import in_command_words
from tbscope.options import DRAWING

if TYPE_CHECKING:
    from tbscope.ir.graph import Graph

__all__ = [
    "FORMS_HELP",
    "changed",
    "check_depth_use",
    "data_of_outputs",
    "put_outputs",
]

FORMS_HELP = (
    ".html (a page with boxes that open), .dot, .svg and .png (by Graphviz), .mmd (Mermaid), "
    ".explorer.json (Model Explorer), .json (all of it, to be read again), .pbtxt and .pb (a "
    "GraphDef as text and in binary form)"
)
"""What help tells of the forms."""


def changed(drawing: dict[str, Any]) -> Any:
    """Return the options of a drawing that are not as they are without a word."""
    return {name: value for name, value in drawing.items() if value != DRAWING[name].default}


def check_depth_use(outputs: Sequence[OutputFile], depth: int | None) -> None:
    """Refuse a depth where no file is drawn to one."""
    if depth is None:
        return
    from tbscope.saving.forms import FORMS, form_of

    if not any(form_of(output.name).cuts for output in outputs):
        cutting = ", ".join(form.suffix for form in FORMS if form.cuts)
        raise click.UsageError(f"--depth is for {cutting}: give such a file to -o.")


def data_of_outputs(
    graph: "Graph", outputs: Iterable[OutputFile], *, depth: int | None, drawing: Any
) -> list[tuple[OutputFile, bytes]]:
    """Return what each of several files holds, before any of them is written.

    Args:
        graph: The graph.
        outputs: The files.
        depth: The depth of those that are drawn to one.
        drawing: The options of those that are drawings.
    Raises:
        TbscopeError: It cannot be drawn so, or a program that draws it is not there.
    """
    from tbscope.saving.forms import How, data_of, form_of

    made = []
    for output in outputs:
        form = form_of(output.name)
        how = How(depth if form.cuts else None, drawing if form.draws else {})
        with in_command_words():
            made.append((output, data_of(graph, form, how)))
    return made


def put_outputs(made: Iterable[tuple[OutputFile, bytes]]) -> None:
    """Write files, and print what goes to standard output.

    Raises:
        TbscopeError: A file cannot be written.
    """
    for output, data in made:
        if output.path is None:
            give_document(data)
        else:
            put_in_file(output.path, data)
