"""Programs of Python in processes that have loaded torch already: each is forked from one that has.

    done = run_warm("-c", "print(tbscope.__name__)", "argument", cwd=folder)

A program has a `__main__`, arguments, an environment, standard streams and an end of its own, as
with `subprocess.run`, and does not wait for torch to be imported. `WarmProgram` starts one that
runs beside the tests, as `subprocess.Popen`. A program whose imports are tested is started by
`subprocess`.
"""

import atexit
import importlib
import json
import os
import runpy
import signal
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

    def ask(self, order):
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self):
        self._process.stdin.close()
        self._process.wait()


_forges = []


def _forge():
    """Give the forge of this process, started where there is none."""
    if not _forges:
        _forges.append(_Forge())
        atexit.register(_forges[0].end)
    return _forges[0]


def _order(words, pipes, cwd, env):
    return {
        "words": [str(word) for word in words],
        "cwd": str(cwd or Path.cwd()),
        "env": {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        "pipes": [str(pipe) for pipe in pipes],
    }


def run_warm(*words, cwd=None, env=None, frees=True):
    """Run Python with these words (`-c CODE`, `-m MODULE` or a file, and arguments).

    Args:
        words: The words after `python`.
        cwd: The working directory; that of this process without it.
        env: Variables of the environment, beside those of this process.
        frees: Whether the interpreter frees all objects at the end of the program, as usual.

    Returns:
        The `subprocess.CompletedProcess`, with stdout and stderr as text.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Pipes, as limits of the size of files hold for files.
        pipes = [Path(folder, name) for name in ("out", "errors")]
        for pipe in pipes:
            os.mkfifo(pipe)
        with ThreadPoolExecutor() as readers:
            printed = readers.map(Path.read_text, pipes)
            code = _forge().ask({**_order(words, pipes, cwd, env), "frees": frees})
            return subprocess.CompletedProcess(words, code, *printed)


class WarmProgram:
    """A program that runs beside this process, with words as those of `run_warm`.

    Attributes:
        stderr: What it prints on the standard stream of errors; what it prints else is lost.
    """

    def __init__(self, *words, cwd=None, env=None):
        with tempfile.TemporaryDirectory() as folder:
            pipe = Path(folder, "errors")
            os.mkfifo(pipe)
            order = _order(words, [os.devnull, pipe], cwd, env)
            self._number = _forge().ask({**order, "stays": True, "frees": False})
            self.stderr = pipe.open()

    def end(self):
        """Have it end, and wait until it has."""
        _forge().ask({"end": self._number})
        self.stderr.close()


def run_tests_warm(name, **options):
    """Run tests of this repository with pytest, in a process in which no other thread is."""
    words = ("-q", "-p", "no:xdist", "-p", "no:randomly", "-p", "no:cacheprovider")
    # What is loaded already is no test, and asserts nothing.
    late = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    return run_warm("-m", "pytest", *words, *late, name, cwd=ROOT, frees=False, **options)


def _serve():
    """Fork a program for each order, or end one; in the program, return its order."""
    importlib.import_module("warmed")
    replies = os.dup(1)
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        program = order.get("end") or os.fork()
        if not program:
            os.close(replies)
            return order
        if "end" in order:
            os.kill(program, signal.SIGTERM)
        reply = program
        if "stays" not in order:
            reply = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        os.write(replies, b"%d\n" % reply)
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
    except SystemExit as ended:
        if _order["frees"]:
            raise
        # To free all that is loaded takes a third of a second, and copies the pages that it is in.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code or 0)
    except Exception as error:  # noqa: BLE001  As the interpreter prints it at its end.
        # The traceback of a program begins in it.
        while error.__traceback__ and error.__traceback__.tb_frame.f_code.co_filename == __file__:
            error.__traceback__ = error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
