"""`tbscope stats`: counts the contents of a graph, by operation and by class."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tbscope.analysis.text_tables import Table
from tbscope.cli.command_errors import command
from tbscope.cli.output import give_json, give_tables, gives_results, table
from tbscope.cli.run_target import graph_of_target, takes_a_target
from tbscope.messages import one_line


@command
@takes_a_target
@gives_results
def stats(*, as_json: bool, output: Path | None, **run: Any) -> None:
    """Count the contents of a graph, by operation and by class of module.

    TARGET is a model or a graph, as for `tbscope show`. Parameters, FLOPs, bytes and depth are
    counted, too, and times if they were measured.

    \b
    tbscope stats torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3
    tbscope stats runs/net
    tbscope stats model.onnx --json
    """  # noqa: D301
    from tbscope.analysis.summary import Summary, count_by_class

    graph = graph_of_target(**run)
    summary = Summary(graph)
    counted = {"graph": graph.name, **count_by_class(graph, summary)}
    if as_json:
        give_json({"version": 1, **counted}, output)
    else:
        give_tables([*_tables(counted, summary.footer)], output)


def _tables(counted: dict[str, Any], footer: Sequence[tuple[str, str]]) -> Iterator[Table]:
    from tbscope.analysis.units import bytes_text, count_text, duration_text, flops_text

    nodes = counted["nodes"]
    kinds = [
        f"{count:,} {'operation' if kind == 'op' else kind}{'' if count == 1 else 's'}"
        for kind, count in nodes.items()
    ]
    head = [
        ("Graph", one_line(counted["graph"])),
        ("Nodes", f"{sum(nodes.values()):,}: {', '.join(kinds)}" if kinds else "0"),
        ("Calls", f"{counted['calls']:,}, {counted['depth']:,} deep"),
    ]
    yield table(("", ""), [*head, *footer])
    # A graph without bytes was not traced: its FLOPs are unknown, not 0.
    watched = bool(counted["totals"]["activation_bytes"])
    ops = counted["ops"]
    columns = {
        "Op": [one_line(row["op"]) for row in ops],
        "Count": [f"{row['count']:,}" for row in ops],
        "FLOPs": [
            flops_text(row["flops"]) if row["flops"] or (watched and row["flops"] == 0) else ""
            for row in ops
        ],
        "Activations": [bytes_text(row["activation_bytes"]) if watched else "" for row in ops],
        "Time": [
            "" if row["duration_us"] is None else duration_text(row["duration_us"]) for row in ops
        ],
    }
    # Empty columns are left out.
    shown = {title: cells for title, cells in columns.items() if any(cells)}
    if ops:
        yield table([*shown], [*zip(*shown.values(), strict=True)], numeric=len(shown) - 1)
    rows = [
        (
            one_line(row["class"]),
            f"{row['modules']:,}",
            f"{row['calls']:,}",
            count_text(row["own_parameters"]),
        )
        for row in counted["classes"]
    ]
    if rows:
        yield table(("Class", "Modules", "Calls", "Own parameters"), rows, numeric=3)
