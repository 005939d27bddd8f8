"""Runs the tests against other versions: `python -m tests.against --torch 2.6.0`.

`--tensorboard 2.18.0` and `--with protobuf==4.25.8` name the versions of other packages. A fresh
virtual environment gets what is asked for with all that it needs, and of the rest what
`constraints.txt` names. What is no option of this command is given to pytest.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

# The first TensorBoard that does without `pkg_resources`, which setuptools 82 has dropped.
_WITHOUT_PKG_RESOURCES = (2, 21)
# The oldest that builds tbscope; an environment may begin with one that is older.
_SETUPTOOLS = "setuptools>=77"

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
    wanted = [_SETUPTOOLS]
    if torch:
        wanted.append(f"torch=={torch}")
    if tensorboard:
        wanted.append(f"tensorboard=={tensorboard}")
        numbers = tuple(int(number) for number in tensorboard.split(".")[:2])
        if numbers < _WITHOUT_PKG_RESOURCES:
            wanted[0] += ",<82"
    return [*wanted, *others]


def left_of(constraints: str, installed: Iterable[str]) -> str:
    """Return the lines of `constraints.txt` without those of packages that are installed already.

    What torch and TensorBoard need is theirs to choose: torch 2.6 takes one version of sympy alone.
    """
    names = {normal(name) for name in installed}
    lines = constraints.splitlines(keepends=True)
    return "".join(line for line in lines if normal(line.partition("==")[0]) not in names)


def install(python: Path, wanted: Sequence[str], env: Mapping[str, str]) -> None:
    """Install the requirements, then tbscope with all that its tests need."""
    pip = [str(python), "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", *wanted], env=env, check=True)
    frozen = subprocess.run(
        [*pip, "freeze", "--all"], env=env, check=True, capture_output=True, text=True
    )
    installed = [re.split(r"==| @ ", line)[0] for line in frozen.stdout.splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text(left_of((ROOT / "constraints.txt").read_text(), installed))
        rest = ["--quiet", "-c", str(constraints), "-e", f"{ROOT}[test,dev]", *wanted]
        subprocess.run([*pip, "install", *rest], env=env, check=True)


def run_against(python: Path, wanted: Sequence[str], tests: Sequence[str]) -> int:
    """Install into an environment, tell what stands in it, and run the tests; give their status."""
    # What lies on the path would count as installed.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    install(python, wanted, env)
    subprocess.run([str(python), "-c", _TELL], env=env, check=True)
    run = [str(python), "-m", "pytest", *tests]
    return subprocess.run(run, cwd=ROOT, env=env, check=False).returncode


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
