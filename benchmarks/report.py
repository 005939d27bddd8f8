"""What the measurements say: one row per model, and how they stand to what is expected."""

import statistics
from typing import Any

__all__ = ["add_ratios", "models_table", "scaling_table", "summary", "summary_lines"]

EXPECTED_TIMES_CHEAPER = 20.0
EXPECTED_FORWARDS = 1.3
EXPECTED_US_PER_NODE = 60.0
EXPECTED_PEAK = 1.1
LONG_FORWARD_MS = 50.0

MODELS_HEAD = (
    *("model", "nodes", "forward", "torch's", "tbscope", "= trace", "+ convert", "+ write"),
    *("torch's/ours", "forwards", "us/node", "peak"),
)
SCALING_HEAD = ("size", "nodes", "forward", "trace", "convert", "write", "us/node")


def add_ratios(result: dict[str, Any]) -> dict[str, Any]:
    """Give a measurement with what follows from it: the whole of tbscope, and ratios."""
    ms, peak = result["ms"], result["peak_bytes"]
    ours = ms["trace"] + ms["convert"] + ms["write"]
    return {
        **result,
        "tbscope_ms": ours,
        "times_cheaper": ms["torch"] / ours if "torch" in ms else None,
        "forwards": ours / ms["forward"],
        "us_per_node": (ours - ms["forward"]) * 1e3 / result["nodes"],
        "peak_ratio": peak["traced"] / peak["forward"],
    }


def summary(models: list[dict[str, Any]]) -> dict[str, Any]:
    """Give the figures that stand against what is expected."""
    cheaper = [row["times_cheaper"] for row in models if row["times_cheaper"] is not None]
    long = [row["forwards"] for row in models if row["ms"]["forward"] >= LONG_FORWARD_MS]
    return {
        "median_times_cheaper": statistics.median(cheaper) if cheaper else None,
        "most_forwards_where_long": max(long, default=None),
        "most_us_per_node": max(row["us_per_node"] for row in models),
        "most_peak_ratio": max(row["peak_ratio"] for row in models),
    }


def summary_lines(figures: dict[str, Any]) -> list[str]:
    """Give one line per figure, with what is expected of it."""
    lines = (
        (
            "median of torch's cost over tbscope's",
            figures["median_times_cheaper"],
            f"at least {EXPECTED_TIMES_CHEAPER:g}",
            lambda value: value >= EXPECTED_TIMES_CHEAPER,
        ),
        (
            f"most forwards, where one takes {LONG_FORWARD_MS:g} ms or more",
            figures["most_forwards_where_long"],
            f"at most {EXPECTED_FORWARDS:g}",
            lambda value: value <= EXPECTED_FORWARDS,
        ),
        (
            "most us per node on top of the forward",
            figures["most_us_per_node"],
            f"at most {EXPECTED_US_PER_NODE:g}",
            lambda value: value <= EXPECTED_US_PER_NODE,
        ),
        (
            "most peak memory of a traced over a plain forward",
            figures["most_peak_ratio"],
            f"at most {EXPECTED_PEAK:g}",
            lambda value: value <= EXPECTED_PEAK,
        ),
    )
    return [
        f"{what}: {'not measured' if value is None else f'{value:.2f}'} (expected: {bound}"
        + (")" if value is None else f"; {'met' if holds(value) else 'NOT met'})")
        for what, value, bound, holds in lines
    ]


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
                f"{row['tbscope_ms']:.2f}",
                *(f"{ms[part]:.2f}" for part in ("trace", "convert", "write")),
                "-" if row["times_cheaper"] is None else f"{row['times_cheaper']:.1f}",
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
                *(f"{ms[part]:.1f}" for part in ("forward", "trace", "convert", "write")),
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
