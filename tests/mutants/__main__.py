"""Tells how many slips in the code the tests notice: `python -m tests.mutants --sample 400`.

For each slip the tree is copied, the slip put in, and the tests that guard the file run in
a process of their own until one of them fails (see `guards.py`).
"""

import argparse
import compileall
import difflib
import json
import os
import py_compile
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
import tensorboard.compat.proto.graph_pb2
import torch
import transformers

from tests.mutants.guards import GUARDS, guards_of
from tests.mutants.slips import Slip, find_slips, sample_slips, with_slip
from tests.zoo.farm import farm

ROOT = Path(__file__).parents[2]
COPIED = ("tbscope", "tests", "examples", "benchmarks", "docs", "setup.cfg", "pyproject.toml")
COPIED_FILES = ("README.md", "CHANGELOG.md", "constraints.txt", ".gitignore")

# Loaded here once, so that no child has to: most of the time that a small test takes.
PRELOADED = (tensorboard, torch, transformers)


_PYTEST = (
    *("-x", "-q", "--no-header", "--tb=no"),
    *("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"),
    # What is loaded already cannot be rewritten by pytest, and need not be.
    *("-W", "ignore:Module already imported"),
)


def main() -> int:
    """Put in the slips, print those that live; give 0 where enough of them were noticed."""
    options = _options()
    torch.set_num_threads(1)
    paths = [path for path in GUARDS if options.only.search(path)]
    if options.slip:
        slips = [
            slip for path in paths for each in find_slips(ROOT, path).values() for slip in each
        ]
        slips = [slip for slip in slips if slip.name in options.slip]
    else:
        slips = sample_slips(ROOT, paths, count=options.sample, seed=options.seed)
    with tempfile.TemporaryDirectory() as folder:
        pristine = _copy(Path(folder))
        limits = _baseline(pristine, sorted({slip.path for slip in slips}), options.jobs)
        results = _run(pristine, slips, limits, options)
    return _report(slips, results, at_least=options.at_least)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX")
    parser.add_argument("--sample", type=int, default=400, help="how many slips")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--at-least", type=float, default=0.85, help="the share to be noticed")
    parser.add_argument("--slip", action="append", metavar="NAME", help="one slip, as printed")
    parser.add_argument("--json", metavar="FILE", help="where each result is added as a line")
    return parser.parse_args()


def _copy(folder: Path) -> Path:
    """Copy the tree, compiled such that a change of a file is seen by its content."""
    pristine = folder / "pristine"
    pristine.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            leave = shutil.ignore_patterns("__pycache__", "*.png")
            shutil.copytree(source, pristine / name, ignore=leave)
        else:
            shutil.copy(source, pristine / name)
    for name in COPIED_FILES:
        shutil.copy(ROOT / name, pristine / name)
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(pristine / "tbscope", quiet=1, invalidation_mode=mode)
    return pristine


def _test(tree: Path, guards: list[str]) -> tuple[int, str]:
    """Run tests in a tree until one fails; give pytest's exit code and the test that failed."""
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path[:] = [str(tree), *[path for path in sys.path if path and Path(path) != ROOT]]
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{ROOT}{os.sep}t"):
            del sys.modules[name]
    failed = _Failed()
    code = pytest.main(
        [*_PYTEST, *guards],
        plugins=[failed],
    )
    return int(code), failed.name


class _Failed:
    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.name = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.name = f"{report.nodeid} (could not be collected)"


def _baseline(pristine: Path, paths: list[str], jobs: int) -> dict[str, float]:
    """Give how many seconds the guards of each file take where nothing is wrong."""
    groups = sorted({tuple(guards_of(path)) for path in paths})
    named = {" ".join(group): list(group) for group in groups}

    def work(name: str) -> list[object]:
        begin = time.monotonic()
        return [*_test(pristine, named[name]), time.monotonic() - begin]

    seconds = {}
    for name, result, error in farm(named, work, jobs=jobs, limit_s=900):
        if error or result[0] != 0:
            sys.exit(f"the tests fail where nothing was changed: {name}: {error or result}")
        seconds[name] = result[2]
        print(f"{result[2]:6.1f} s  {name}", flush=True)
    return {path: seconds[" ".join(guards_of(path))] for path in paths}


def _run(
    pristine: Path, slips: list[Slip], limits: dict[str, float], options: argparse.Namespace
) -> dict[str, dict[str, object]]:
    by_name = {slip.name: slip for slip in slips}

    def work(name: str) -> dict[str, object]:
        slip = by_name[name]
        with tempfile.TemporaryDirectory(dir=pristine.parent) as folder:
            tree = Path(folder) / "tree"
            shutil.copytree(pristine, tree)
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            (tree / slip.path).write_text(with_slip(pristine, slip), encoding="utf-8")
            code, test = _test(tree, guards_of(slip.path))
            os.chdir("/")
        if code == pytest.ExitCode.NO_TESTS_COLLECTED or code == pytest.ExitCode.USAGE_ERROR:
            raise RuntimeError(f"pytest ended with {code}")
        return {"noticed": code != 0, "by": test}

    longest = max(limits.values(), default=0) * 4 + 60
    results: dict[str, dict[str, object]] = {}
    begin = time.monotonic()
    for name, result, error in farm(by_name, work, jobs=options.jobs, limit_s=longest):
        if error and not error.startswith(("it ran past", "its process died")):
            sys.exit(f"{name}: {error}")
        # A hang and a crash are noticed: the tests do not end well.
        results[name] = result or {"noticed": True, "by": error}
        row = {**asdict(by_name[name]), "name": name, **results[name]}
        if options.json:
            with open(options.json, "a", encoding="utf-8") as sink:
                sink.write(json.dumps(row) + "\n")
        mark = "noticed" if results[name]["noticed"] else "LIVES  "
        print(f"{time.monotonic() - begin:6.0f} s {mark} {name}  {results[name]['by']}", flush=True)
    return results


def _report(slips: list[Slip], results: dict[str, dict[str, object]], *, at_least: float) -> int:
    noticed: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for slip in slips:
        counts[slip.path] += 1
        if results[slip.name]["noticed"]:
            noticed[slip.path] += 1
            continue
        before = (ROOT / slip.path).read_text(encoding="utf-8").splitlines()
        after = with_slip(ROOT, slip).splitlines()
        changed = list(difflib.unified_diff(before, after, n=0, lineterm=""))[3:]
        print(f"\n{slip.name}\n" + "\n".join(changed))
    print("\n| file | slips | noticed |\n| --- | --- | --- |")
    for path, count in sorted(counts.items()):
        print(f"| {path} | {count} | {noticed[path]} |")
    total, seen = sum(counts.values()), sum(noticed.values())
    print(f"| all | {total} | {seen} ({seen / total:.1%}) |")
    return 0 if seen / total >= at_least else 1


if __name__ == "__main__":
    sys.exit(main())
