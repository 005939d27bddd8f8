"""Prints the table of the whole zoo: `python -m tests.zoo --only 'Bert' --jobs 2`."""

import argparse
import json
import re
import sys
import time
from collections import Counter
from dataclasses import asdict
from typing import Any, TextIO

import torch

import tbscope
from tests.zoo.check import ASPECTS, check
from tests.zoo.farm import farm
from tests.zoo.models import CannotBuildError, Entry, build, catalogue, choose, run

MODES = (("eval", False), ("train", True))


def main() -> int:
    """Check what is asked for; give 0 if all that could be built is right."""
    options = _options()
    torch.set_num_threads(1)
    tbscope.trace, tbscope.to_graph_def  # noqa: B018  (Loaded once, before a child is forked.)
    entries = [e for e in catalogue() if options.only.search(e.name)]
    if not options.heads:
        entries = choose(entries)
    by_name = {entry.name: entry for entry in entries}
    begin = time.monotonic()
    counts: Counter[str] = Counter()
    print(f"{len(entries)} classes\n{_HEADER}")
    work = _build_one if options.build else _check_one
    rows = farm(by_name, lambda name: work(by_name[name]), jobs=options.jobs, limit_s=options.limit)
    with open(options.json or "/dev/null", "w", encoding="utf-8") as sink:
        for name, result, error in rows:
            row = {"name": name, **(result or {"failed": error})}
            sink.write(json.dumps(row) + "\n")
            sink.flush()
            _print_row(row, sys.stdout, quiet=options.quiet)
            _count(row, counts)
    print(f"\n{time.monotonic() - begin:.0f} s")
    for key in (
        "classes",
        "failed",
        "built",
        "runs",
        "right",
        *sorted(k for k in counts if ":" in k),
    ):
        print(f"{key:24} {counts[key]}")
    return 0 if counts["right"] == counts["runs"] and not counts["failed"] else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each class")
    parser.add_argument("--heads", action="store_true", help="every class with every head")
    parser.add_argument("--build", action="store_true", help="only build and run, without tbscope")
    parser.add_argument("--quiet", action="store_true", help="print only what is wrong")
    parser.add_argument("--json", metavar="FILE", help="also write one line of JSON per class")
    return parser.parse_args()


def _build_one(entry: Entry) -> dict[str, Any]:
    """Build a class and run it in both modes."""
    return _examined(entry, lambda model, inputs, training: run(model, inputs, training=training))


def _check_one(entry: Entry) -> dict[str, Any]:
    """Build a class and check it in both modes."""
    return _examined(
        entry, lambda model, inputs, training: asdict(check(model, (), inputs, training=training))
    )


def _examined(entry: Entry, examine: Any) -> dict[str, Any]:
    try:
        example = build(entry)
    except CannotBuildError as error:
        return {"cannot": str(error)}
    row: dict[str, Any] = {
        "type": entry.model_type,
        "kind": entry.kind,
        "plan": str(example.plan),
        "inputs": {k: list(getattr(v, "shape", ())) for k, v in example.inputs.items()},
        "parameters": sum(p.numel() for p in example.model.parameters()),
        "modes": {},
    }
    for mode, training in MODES:
        try:
            run(example.model, example.inputs, training=training)
        except Exception as error:  # noqa: BLE001  (Not every model trains without labels.)
            row["modes"][mode] = {"raises": f"{type(error).__name__}: {error}"}
            continue
        found = examine(example.model, example.inputs, training)
        row["modes"][mode] = found if isinstance(found, dict) and "wrong" in found else {}
    return row


_HEADER = (
    f"{'class':44} {'kind':10} {'params':>9} {'nodes':>6} {'calls':>6} {'µs/node':>7}  "
    "eval / train: " + " ".join(ASPECTS)
)


def _print_row(row: dict[str, Any], out: TextIO, *, quiet: bool) -> None:
    """Print one class; under it, what is wrong."""
    if "cannot" in row:
        reason = " ".join(str(row["cannot"]).split("\n")[0].split())
        out.write(f"{row['name']:44} cannot: {reason[:160]}\n")
        return
    if "failed" in row:
        out.write(f"{row['name']:44} FAILED: {str(row['failed']).strip()[-300:]}\n")
        return
    modes = row["modes"]
    wrong = [mode for mode in modes.values() if mode.get("wrong") or "raises" in mode]
    if quiet and not wrong:
        return
    first = modes["eval"]
    extra = first.get("trace_ms", 0) - first.get("forward_ms", 0)
    marks = " / ".join(_marks(mode) for mode in modes.values())
    out.write(
        f"{row['name']:44} {row['kind']:10} {row['parameters']:9,} {first.get('nodes', 0):6} "
        f"{first.get('calls', 0):6} {extra * 1000 / max(first.get('nodes', 0), 1):7.0f}  {marks}\n"
    )
    for name, mode in modes.items():
        if "raises" in mode:
            out.write(f"    {name}: the model raises {mode['raises'][:150]}\n")
        for aspect, reasons in mode.get("wrong", {}).items():
            for reason in reasons:
                out.write(f"    {name} {aspect}: {reason[:220]}\n")
    out.flush()


def _marks(mode: dict[str, Any]) -> str:
    if "raises" in mode:
        return "raises".ljust(len(ASPECTS))
    return "".join("x" if aspect in mode.get("wrong", {}) else "." for aspect in ASPECTS)


def _count(row: dict[str, Any], counts: Counter[str]) -> None:
    counts["classes"] += 1
    if "cannot" in row:
        return
    if "failed" in row:
        counts["failed"] += 1
        return
    counts["built"] += 1
    for mode, found in row["modes"].items():
        if "raises" in found:
            counts[f"{mode}: model raises"] += 1
            continue
        counts["runs"] += 1
        counts["right"] += not found.get("wrong")
        for aspect in found.get("wrong", {}):
            counts[f"wrong: {aspect}"] += 1


if __name__ == "__main__":
    sys.exit(main())
