"""What the measurements say: one row per model, and how they stand to what is expected."""

from collections.abc import Callable
from statistics import median
from typing import Any

__all__ = ["add_ratios", "models_table", "scaling_table", "summary", "summary_lines"]

LONG_FORWARD_MS = 50.0
MANY_NODES = 100
MUCH_MEMORY_BYTES = 1 << 16

MODELS_HEAD = (
    *(
        "model",
        "nodes",
        "forward",
        "torch's",
        "torchview",
        "tbscope",
        "(trace",
        "convert",
        "write)",
    ),
    *("times cheaper", "on top", "of torchview's", "forwards", "us/node", "peak"),
)
SCALING_PARTS = ("forward", "tbscope", "trace", "convert", "write")
SCALING_HEAD = ("size", "nodes", "forward", "tbscope", "(trace", "convert", "write)", "us/node")


def add_ratios(result: dict[str, Any]) -> dict[str, Any]:
    """Give a measurement with the ratios that follow from it."""
    ms, peak = result["ms"], result["peak_bytes"]
    forward, ours = ms["forward"], ms["tbscope"]
    theirs, views = ms.get("torch"), ms.get("torchview")
    return {
        **result,
        "times_cheaper": None if theirs is None else theirs / ours,
        "times_cheaper_on_top": None if theirs is None else (theirs - forward) / (ours - forward),
        "of_torchview": None if views is None else ours / views,
        "forwards": ours / ms["forward"],
        "us_per_node": (ours - ms["forward"]) * 1e3 / result["nodes"],
        "peak_ratio": peak["traced"] / peak["forward"],
    }


def summary(models: list[dict[str, Any]], scaling: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the figures that stand against what is expected, each with what it is over.

    Nothing is expected of times: where one forward is a tenth of torch's trace, no tool that runs
    the model once can be more than ten times cheaper. `--calls` shows what may not grow.

    What a trace costs and holds however small the model is (some 2 ms, and 5 KB for the
    state of the random generator) would drown the figures per node and per byte of
    models that have next to none; so these are over the others.
    """
    compared = [row for row in models if row["times_cheaper"] is not None]
    long = [row for row in models if row["ms"]["forward"] >= LONG_FORWARD_MS]
    many = [row for row in (*models, *scaling) if row["nodes"] >= MANY_NODES]
    viewed = [row for row in models if row["of_torchview"] is not None]
    heavy = [row for row in models if row["peak_bytes"]["forward"] >= MUCH_MEMORY_BYTES]
    return [
        figure("times cheaper than torch's, median", median, compared, "times_cheaper"),
        figure(
            "the same on top of one forward each, median",
            median,
            compared,
            "times_cheaper_on_top",
        ),
        figure("cost over torchview's, median", median, viewed, "of_torchview"),
        figure(
            f"forwards, most where one takes {LONG_FORWARD_MS:g} ms or more",
            max,
            long,
            "forwards",
        ),
        figure(
            f"us per node on top of the forward, most from {MANY_NODES} nodes on",
            max,
            many,
            "us_per_node",
        ),
        figure(
            f"peak memory over the forward's, most from {MUCH_MEMORY_BYTES >> 10} KB on",
            max,
            heavy,
            "peak_ratio",
            most=1.1,
        ),
    ]


def figure(
    what: str,
    choose: Callable[[list[float]], float],
    rows: list[dict[str, Any]],
    key: str,
    *,
    least: float | None = None,
    most: float | None = None,
) -> dict[str, Any]:
    """Give one figure over some models, with the bound that it is expected to keep."""
    value = choose([row[key] for row in rows]) if rows else None
    return {"what": what, "models": len(rows), "value": value, "least": least, "most": most}


def summary_lines(figures: list[dict[str, Any]]) -> list[str]:
    """Give one line per figure, and whether it is as expected."""
    return columns(
        [("figure", "value", "models", "expected", "")]
        + [
            (
                found["what"],
                "-" if found["value"] is None else f"{found['value']:.2f}",
                str(found["models"]),
                expectation(found),
                verdict(found),
            )
            for found in figures
        ]
    )


def expectation(found: dict[str, Any]) -> str:
    if found["least"] is not None:
        return f">= {found['least']:g}"
    return "" if found["most"] is None else f"<= {found['most']:g}"


def verdict(found: dict[str, Any]) -> str:
    value, least, most = found["value"], found["least"], found["most"]
    if value is None or least is most is None:
        return ""
    holds = (least is None or value >= least) and (most is None or value <= most)
    return "met" if holds else "NOT met"


def models_table(models: list[dict[str, Any]]) -> list[str]:
    """Give the lines of the table of models, and below it where torch's own fails."""
    rows = [MODELS_HEAD]
    notes = []
    for row in models:
        ms, failures = row["ms"], row["torch"]["failures"]
        mark = f"[{len(notes) + 1}]" if failures else ""
        if failures:
            way = row["torch"]["measured"]
            then = f"; measured {way}" if way else "; left out"
            notes.append(f"{mark} torch's own fails as users call it: {first(failures)}{then}")
        rows.append(
            (
                row["name"],
                f"{row['nodes']:,}",
                f"{ms['forward']:.2f}",
                (f"{ms['torch']:.1f}" if "torch" in ms else "fails") + mark,
                f"{ms['torchview']:.1f}" if "torchview" in ms else "-",
                *(f"{ms[part]:.2f}" for part in ("tbscope", "trace", "convert", "write")),
                *(
                    "-" if row[key] is None else f"{row[key]:.1f}"
                    for key in ("times_cheaper", "times_cheaper_on_top")
                ),
                "-" if row["of_torchview"] is None else f"{row['of_torchview']:.2f}",
                f"{row['forwards']:.2f}",
                f"{row['us_per_node']:.1f}",
                f"{row['peak_ratio']:.2f}",
            )
        )
    return [*columns(rows), *notes]


def scaling_table(scaling: list[dict[str, Any]]) -> list[str]:
    """Give the lines of the table that shows how the cost per node goes with the size."""
    rows = [SCALING_HEAD]
    for row in scaling:
        ms = row["ms"]
        rows.append(
            (
                row["name"],
                f"{row['nodes']:,}",
                *(f"{ms[part]:.1f}" for part in SCALING_PARTS),
                f"{row['us_per_node']:.1f}",
            )
        )
    return columns(rows)


def first(failures: dict[str, str]) -> str:
    return shorten(next(iter(failures.values())))


def shorten(text: str, width: int = 90) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def columns(rows: list[tuple[str, ...]]) -> list[str]:
    """Give rows as lines with aligned columns, the first to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
