"""`tbscope stats`: counts what a graph holds, by operation and by class."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tbscope.cli._command import command
from tbscope.cli._results import give_json, gives_results
from tbscope.cli._running import graph_of_target, takes_a_target
from tbscope.cli._tables import Table, give_tables, plain_cell

if TYPE_CHECKING:
    from tbscope.figures.tally import OpTally, Tally

__all__ = ["stats"]

_KINDS = {
    **{kind: kind for kind in ("input", "parameter", "buffer", "constant")},
    "op": "operation",
}


@command
@takes_a_target
@gives_results
def stats(*, as_json: bool, output: Path | None, **run: Any) -> None:
    """Count what a graph holds, by operation and by class of module.

    TARGET is a model or a graph, as for `tbscope show`. Parameters, FLOPs, bytes and depth are
    told, too, and times where they were measured.

    \b
    tbscope stats torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3
    tbscope stats runs/net
    tbscope stats model.onnx --json
    """  # noqa: D301
    from tbscope.figures.tally import tally

    graph = graph_of_target(**run)
    counted = tally(graph)
    if as_json:
        give_json({"version": 1, "graph": graph.name, **_plain(counted)}, output)
    else:
        give_tables([*_tables(graph.name, counted)], output)


def _tables(name: str, counted: "Tally") -> Iterator[Table]:
    from tbscope.figures.summary.columns import count_text

    kinds = [
        f"{count:,} {_KINDS[kind]}{'' if count == 1 else 's'}"
        for kind, count in counted.nodes.items()
    ]
    head = [
        ("Graph", plain_cell(name)),
        ("Nodes", f"{sum(counted.nodes.values()):,}: {', '.join(kinds)}" if kinds else "0"),
        ("Calls", f"{counted.calls:,}, {counted.depth:,} deep"),
        *counted.footer,
    ]
    yield Table(("", ""), head)
    if counted.ops:
        yield _ops_table(counted)
    if counted.classes:
        yield Table(
            ("Class", "Modules", "Calls", "Own parameters"),
            [
                (
                    plain_cell(one.name),
                    f"{one.modules:,}",
                    f"{one.calls:,}",
                    "" if one.parameters is None else count_text(one.parameters),
                )
                for one in counted.classes
            ],
            numeric=3,
        )


def _ops_table(counted: "Tally") -> Table:
    """Return the table of the operations: a figure that is told of none has no column."""
    from tbscope.figures.summary.columns import bytes_text, duration_text, flops_text

    totals = counted.totals
    sized = bool(totals["activation_bytes"])
    # What tells no bytes was not watched: that it tells no FLOPs does not make them 0.
    worked = sized or bool(totals["flops"] or totals["uncounted"])
    timed = totals["duration_us"] is not None
    rows = []
    for one in counted.ops:
        costs = one.costs
        known = costs.flops or (sized and not costs.uncounted)
        time = costs.duration_us
        cells = [
            (True, plain_cell(one.op)),
            (True, f"{one.count:,}"),
            (worked, flops_text(costs.flops) if known else ""),
            (sized, bytes_text(costs.activation_bytes)),
            (timed, "" if time is None else duration_text(time)),
        ]
        rows.append(tuple(text for shown, text in cells if shown))
    heads = {"Op": True, "Count": True, "FLOPs": worked, "Activations": sized, "Time": timed}
    titles = tuple(title for title, shown in heads.items() if shown)
    return Table(titles, rows, numeric=len(titles) - 1)


def _plain(counted: "Tally") -> dict[str, Any]:
    """Return a tally as JSON takes it."""
    left_out = ("profile", "uncounted", "reasons", "tied")
    totals = {name: value for name, value in counted.totals.items() if name not in left_out}
    return {
        "nodes": counted.nodes,
        "calls": counted.calls,
        "depth": counted.depth,
        "totals": totals,
        "ops": [_plain_op(one) for one in counted.ops],
        "classes": [
            {
                "class": one.name,
                "modules": one.modules,
                "calls": one.calls,
                "own_parameters": one.parameters,
            }
            for one in counted.classes
        ],
    }


def _plain_op(one: "OpTally") -> dict[str, Any]:
    from tbscope.figures.summary.rows import costs_row

    costs = costs_row(one.costs)
    del costs["uncounted"]
    return {"op": one.op, "count": one.count, **costs}
