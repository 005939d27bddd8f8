"""Runs the tests against other versions: `python -m tests.against --torch 2.6.0`.

`--tensorboard 2.18.0` and `--with protobuf==4.25.8` name the versions of other packages. A fresh
virtual environment gets what is asked for with all that it needs, and of the rest what
`constraints.txt` names. What is no option of this command is given to pytest.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

# The first TensorBoard that does without `pkg_resources`, and the first setuptools without it.
_WITHOUT_PKG_RESOURCES = (2, 21)
_OLD_SETUPTOOLS = "setuptools<82"

_TELL = """
from importlib.metadata import version
for name in ("torch", "tensorboard", "protobuf", "numpy", "transformers", "setuptools"):
    print(name, version(name), flush=True)
"""


def normal(name: str) -> str:
    """Return the name of a package in the one form that names are compared in."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def asked_for(torch: str | None, tensorboard: str | None, others: Sequence[str]) -> list[str]:
    """Return the requirements of what is asked for, and what that needs beside it."""
    wanted = [f"torch=={torch}"] if torch else []
    if tensorboard:
        wanted.append(f"tensorboard=={tensorboard}")
        numbers = tuple(int(number) for number in tensorboard.split(".")[:2])
        if numbers < _WITHOUT_PKG_RESOURCES:
            wanted.append(_OLD_SETUPTOOLS)
    return [*wanted, *others]


def left_of(constraints: str, installed: Iterable[str]) -> str:
    """Return the lines of `constraints.txt` without those of packages that are installed already.

    What torch and TensorBoard need is theirs to choose: torch 2.6 takes one version of sympy alone.
    """
    names = {normal(name) for name in installed}
    lines = constraints.splitlines(keepends=True)
    return "".join(line for line in lines if normal(line.partition("==")[0]) not in names)


def install(python: Path, wanted: Sequence[str]) -> None:
    """Install the requirements, then tbscope with all that its tests need."""
    pip = [str(python), "-m", "pip"]
    if wanted:
        subprocess.run([*pip, "install", "--quiet", *wanted], check=True)
    frozen = subprocess.run([*pip, "freeze", "--all"], check=True, capture_output=True, text=True)
    installed = [re.split(r"==| @ ", line)[0] for line in frozen.stdout.splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text(left_of((ROOT / "constraints.txt").read_text(), installed))
        rest = ["install", "--quiet", "-c", str(constraints), "-e", f"{ROOT}[test,dev]", *wanted]
        subprocess.run([*pip, *rest], check=True)


def run_against(python: Path, wanted: Sequence[str], tests: Sequence[str]) -> int:
    """Install into an environment, tell what stands in it, and run the tests; give their status."""
    install(python, wanted)
    names = ("torch", "tensorboard", "protobuf", "numpy", "transformers")
    versions = (
        f"import importlib.metadata as m; print(*(f'{{n}} {{m.version(n)}}' for n in {names}))"
    )
    subprocess.run([str(python), "-c", versions], check=True)
    return subprocess.run([str(python), "-m", "pytest", *tests], cwd=ROOT, check=False).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run the tests; return their status."""
    parser = argparse.ArgumentParser(prog="python -m tests.against", description=__doc__)
    parser.add_argument("--torch", help="its version; that of constraints.txt if not given")
    parser.add_argument("--tensorboard", help="its version; that of constraints.txt if not given")
    parser.add_argument(
        "--with", dest="others", action="append", default=[], metavar="NAME==VERSION"
    )
    parser.add_argument("--python", default=sys.executable, help="the Python to use; this one")
    parser.add_argument("--venv", type=Path, help="where the environment is made, and stays")
    options, tests = parser.parse_known_args(arguments)
    wanted = asked_for(options.torch, options.tensorboard, options.others)
    with tempfile.TemporaryDirectory() as folder:
        venv = options.venv or Path(folder)
        subprocess.run([options.python, "-m", "venv", str(venv)], check=True)
        return run_against(venv / "bin" / "python", wanted, tests)


if __name__ == "__main__":
    sys.exit(main())
