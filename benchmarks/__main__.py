"""Prints what tbscope costs: `python -m benchmarks`, or with `--quick` in about a minute.

Each model has a fresh process, in which a plain forward, torch's graph function, torchview's
(where it is installed) and tbscope's trace, conversion and writing take turns. With `--first`,
the first graph of a process instead, imports counted, each in a process of its own. With
`--profile`, how the times that `trace(..., profile=True)` measures stand to an unwatched forward.
With `--calls`, the calls of tbscope's own functions for each node, which do not differ from run to
run.
"""

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from benchmarks.calls import calls_table
from benchmarks.first import first_summary, first_table, measure_first
from benchmarks.models import CASES, COUNTED, PROFILED, SCALING, Case
from benchmarks.profiles import add_profile_ratios, profiles_table


def run(case: Case, options: argparse.Namespace, *, with_torch: bool) -> dict[str, Any]:
    """Measure one case in a process of its own."""
    further = [] if with_torch else ["--without-torch"]
    further += timing(options)
    return report.add_ratios(measured("benchmarks.measure", case, further))


def run_profile(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the times of one case in a process of its own."""
    return add_profile_ratios(measured("benchmarks.profiles", case, timing(options)))


def timing(options: argparse.Namespace) -> list[str]:
    return ["--rounds", str(options.rounds), "--threads", str(options.threads)]


def measured(module: str, case: Case, further: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", module, case.name, *further]
    print(f"  {case.name} ...", file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"measuring {case.name} failed\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def chosen(cases: tuple[Case, ...], options: argparse.Namespace) -> list[Case]:
    return [
        case
        for case in cases
        if (case.quick or not options.quick) and options.only.lower() in case.name.lower()
    ]


def print_profiles(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    profiles = [run_profile(case, options) for case in chosen(PROFILED, options)]
    if not profiles:
        parser.error(f"no model has {options.only!r} in its name")
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, "
        f"{options.threads} thread(s), medians of {options.rounds} runs, wall milliseconds",
        "",
        *profiles_table(profiles),
        sep="\n",
    )
    if options.json:
        found = {"torch": torch.__version__, "rounds": options.rounds, "threads": options.threads}
        options.json.write_text(json.dumps(found | {"profiles": profiles}, indent=2) + "\n")


def print_calls(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    counts = [measured("benchmarks.calls", case, []) for case in chosen(COUNTED, options)]
    if not counts:
        parser.error(f"no model has {options.only!r} in its name")
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, "
        "calls of tbscope's own functions for each node",
        "",
        *calls_table(counts),
        sep="\n",
    )
    if options.json:
        found = {"torch": torch.__version__, "calls": counts}
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def print_first(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    cases = chosen(CASES, options)
    if not cases:
        parser.error(f"no model has {options.only!r} in its name")
    firsts = []
    for case in cases:
        print(f"  {case.name} ...", file=sys.stderr, flush=True)
        firsts.append(measure_first(case, rounds=options.rounds, threads=options.threads))
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {options.threads} "
        f"thread(s), medians of {options.rounds} processes, CPU milliseconds of the first graph",
        "",
        *first_table(firsts),
        "",
        *report.summary_lines(first_summary(firsts)),
        sep="\n",
    )
    if options.json:
        found = {"torch": torch.__version__, "rounds": options.rounds, "threads": options.threads}
        options.json.write_text(json.dumps(found | {"first": firsts}, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller models")
    parser.add_argument(
        "--profile", action="store_true", help="how true the times are that a profile tells"
    )
    parser.add_argument(
        "--first", action="store_true", help="the first graph of a process, imports counted"
    )
    parser.add_argument(
        "--calls", action="store_true", help="the calls of tbscope's functions for each node"
    )
    parser.add_argument("--rounds", type=int, default=7, help="least rounds per model (default 7)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--only", default="", metavar="TEXT", help="models whose name has this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}, and at least 1 is needed")
    if options.profile:
        print_profiles(parser, options)
        return
    if options.calls:
        print_calls(parser, options)
        return
    if options.first:
        print_first(parser, options)
        return
    models = [run(case, options, with_torch=True) for case in chosen(CASES, options)]
    scaling = [run(case, options, with_torch=False) for case in chosen(SCALING, options)]
    if not models and not scaling:
        parser.error(f"no model has {options.only!r} in its name")
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, "
        f"{options.threads} thread(s), medians of {options.rounds} or more rounds, CPU milliseconds"
    )
    figures = report.summary(models, scaling)
    if models:
        print("", *report.models_table(models), "", *report.summary_lines(figures), sep="\n")
    if scaling:
        print("", *report.scaling_table(scaling), sep="\n")
    if options.json:
        found = {"torch": torch.__version__, "rounds": options.rounds, "threads": options.threads}
        found |= {"summary": figures, "models": models, "scaling": scaling}
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
