"""Programs of Python in processes that have loaded torch already: each is forked from one that has.

    done = run_warm("-c", "print(tbscope.__name__)", "argument", cwd=folder)

A program has a `__main__`, arguments, an environment, standard streams and an end of its own, as
with `subprocess.run`, and does not wait for torch to be imported. A program whose imports are
tested is started by `subprocess`.
"""

import atexit
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]


class _Forge:
    """The process that has loaded torch, of which each program is a fork."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, order):
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self):
        self._process.stdin.close()
        self._process.wait()


_forges = []


def run_warm(*words, cwd=None, env=None):
    """Run Python with these words (`-c CODE`, `-m MODULE` or a file, and arguments).

    Args:
        words: The words after `python`.
        cwd: The working directory; that of this process without it.
        env: Variables of the environment, beside those of this process.

    Returns:
        The `subprocess.CompletedProcess`, with stdout and stderr as text.
    """
    if not _forges:
        _forges.append(_Forge())
        atexit.register(_forges[0].end)
    with tempfile.TemporaryDirectory() as folder:
        # Pipes, as limits of the size of files hold for files.
        pipes = [Path(folder, name) for name in ("out", "errors")]
        for pipe in pipes:
            os.mkfifo(pipe)
        order = {
            "words": [str(word) for word in words],
            "cwd": str(cwd or Path.cwd()),
            "env": {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            "pipes": [str(pipe) for pipe in pipes],
        }
        with ThreadPoolExecutor() as readers:
            printed = readers.map(Path.read_text, pipes)
            code = _forges[0].run(order)
            return subprocess.CompletedProcess(words, code, *printed)


def run_tests_warm(name, **options):
    """Run tests of this repository with pytest, in a process in which no other thread is."""
    words = ("-q", "-p", "no:xdist", "-p", "no:randomly", "-p", "no:cacheprovider")
    # What is loaded already is no test, and asserts nothing.
    late = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    return run_warm("-m", "pytest", *words, *late, name, cwd=ROOT, **options)


def _serve():
    """Fork a program for each order; return the order in the program, and None at the end."""
    importlib.import_module("warmed")
    replies = os.dup(1)
    for line in iter(sys.stdin.readline, ""):
        program = os.fork()
        if not program:
            os.close(replies)
            return json.loads(line)
        _, status = os.waitpid(program, 0)
        os.write(replies, b"%d\n" % os.waitstatus_to_exitcode(status))
    return None


def _become(order):
    """Be the program: its streams, its folder, its environment and its `__main__`."""
    for number, path in enumerate((os.devnull, *order["pipes"])):
        opened = os.open(path, os.O_WRONLY if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    kind, *rest = order["words"]
    if kind == "-m":
        sys.path[0] = order["cwd"]
        sys.argv = rest
        return lambda: runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if kind == "-c":
        sys.path[0], sys.argv, text, name = "", ["-c", *rest[1:]], rest[0], "<string>"
    else:
        sys.path[0], sys.argv = str(Path(kind).resolve().parent), order["words"]
        text, name = Path(kind).read_text(), kind
        main.__file__ = kind
    code = compile(text, name, "exec")
    return lambda: exec(code, main.__dict__)


if __name__ == "__main__" and (_order := _serve()):
    try:
        _become(_order)()
    except Exception as error:  # noqa: BLE001  As the interpreter prints it at its end.
        # The traceback of a program begins in it.
        while error.__traceback__ and error.__traceback__.tb_frame.f_code.co_filename == __file__:
            error.__traceback__ = error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
