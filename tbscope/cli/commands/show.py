"""`tbscope show`: prints the graph of a model, the table of its modules, or their definitions."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tbscope.cli.command_errors import command
from tbscope.cli.output import give, give_json, give_tables, gives_results, table
from tbscope.cli.parameters import ModelSpec
from tbscope.cli.run_target import graph_of_target, takes_a_target
from tbscope.cli.target import definitions_in
from tbscope.ir.nodes import STATE

if TYPE_CHECKING:
    from tbscope.functions.definition import Definition


@command
@takes_a_target
@click.option(
    "--sources", is_flag=True, help="End each line with its call site in the model's code."
)
@click.option(
    "--parameters", is_flag=True, help="Print parameters and buffers on lines of their own."
)
@click.option(
    "--summary",
    is_flag=True,
    help="Print the table of its modules instead: shapes, parameters, FLOPs, bytes.",
)
@click.option(
    "--functions",
    "definitions",
    is_flag=True,
    help="Print each definition that its calls share instead, and the graph of their uses.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --summary: the number of levels of modules with rows.  [default: all]",
)
@gives_results
def show(
    *,
    sources: bool,
    parameters: bool,
    summary: bool,
    definitions: bool,
    depth: int | None,
    as_json: bool,
    output: Path | None,
    **run: Any,
) -> None:
    """Print the graph of a model, the table of its modules, or their definitions.

    TARGET is package.module:NAME or path/to/file.py:NAME, where NAME is a model, or a function
    or class that makes one; or the path of a graph: a log, a GraphDef, or any file that
    tbscope.load takes.

    \b
    tbscope show torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3
    tbscope show nets.py:make_model -i 2x3 --summary --depth 2
    tbscope show nets.py:make_model -i 2x3 --functions
    tbscope show nets.py:make_model -i 2x3 --json -o graph.json
    tbscope show model.onnx --summary
    tbscope show runs/net
    """  # noqa: D301
    if depth is not None and not summary:
        raise click.UsageError("--depth is for the table: give --summary, too.")
    if summary and definitions:
        raise click.UsageError("--summary and --functions are two ways to print: give one.")
    if (summary or definitions) and (sources or parameters):
        option = "--summary" if summary else "--functions"
        raise click.UsageError(f"--sources and --parameters are for lines, not for {option}.")
    target = run["target"]
    if isinstance(target, ModelSpec) and not target.attribute:
        found = definitions_in(target.source)
        if as_json:
            give_json({"version": 1, "definitions": found}, output)
        else:
            named = [(f"{target}{name}", text) for name, text in found.items()]
            give_tables([table(("TARGET", "Definition"), named)], output)
        return
    graph = graph_of_target(**run)
    # A file of weights has modules, and no operations to print.
    is_tree = bool(graph.modules) and all(node.kind in STATE for node in graph.nodes)
    if summary or (is_tree and not (definitions or as_json or parameters)):
        columns = ("class", "tensors", "parameters", "parameter_bytes") if is_tree else None
        made: Any = graph.summary(depth=depth, columns=columns)
        if as_json:
            rows = [{**row, "uncounted": dict(row["uncounted"])} for row in made.rows]
            give_json({"version": 1, "rows": rows}, output)
        else:
            give_tables([made], output)
    elif definitions:
        functions: Any = graph.functions()
        if as_json:
            parts = map(_plain, (*functions, functions.main))
            give_json({"version": 1, "functions": [*parts]}, output)
        else:
            give(str(functions), output)
    elif as_json:
        from tbscope.formats.json import graph_to_json

        give(graph_to_json(graph).rstrip("\n"), output)
    else:
        from tbscope.ir.graph import graph_to_text

        give(graph_to_text(graph, sources=sources, parameters=parameters), output)


def _plain(function: "Definition") -> dict[str, object]:
    """Return a definition as plain data for JSON."""
    from tbscope.ir.graph import body_to_lines

    return {
        "name": function.name,
        "head": function.head,
        "body": body_to_lines(function.graph),
        "uses": [use.scope and use.scope.path for use in function.uses],
    }
