"""`tbscope run`: a script runs as Python runs it, and its SummaryWriters draw our graphs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import graphs_in, misused, run_process

from tests.warm import run_warm

TRAINING = """
import torch
from torch.utils.tensorboard import SummaryWriter

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x)

with SummaryWriter("log") as writer:
    writer.add_graph(Net(), torch.ones(1, {width}))
print("trained")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name, text):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def as_python(*words):
    """Run Python itself, and give what a run of tbscope is compared with."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def as_tbscope(*words):
    done = run_warm("-m", "tbscope", "run", *words)
    return done.returncode, done.stdout, done.stderr


def test_a_script_draws_our_graph_without_being_touched(folder):
    write("train.py", TRAINING.format(width=3))
    assert as_tbscope("train.py") == (0, "trained\n", "")
    (graph,) = graphs_in("log")
    assert {"fc", "fc/weight"} <= {node.name for node in graph.node}


def test_options_before_the_script_tell_how_graphs_are_drawn(folder):
    write("train.py", TRAINING.format(width=3))
    assert as_tbscope("--style", "torch", "--root", "train.py", "--style")[0] == 0
    (graph,) = graphs_in("log")
    assert "Net/Linear[fc]" in {node.name for node in graph.node}


def test_a_graph_that_cannot_be_drawn_is_warned_of_or_raised(folder):
    write("train.py", TRAINING.format(width=7))
    code, out, told = as_tbscope("train.py")
    assert (code, out) == (0, "trained\n")
    assert "train.py:14: UserWarning: tbscope drew no graph" in told
    code, out, told = as_tbscope("--on-error", "raise", "train.py")
    assert (code, out) == (1, "")
    assert f'\n  File "{folder}/train.py", line 14, in <module>' in told
    assert "_run.py" not in told


SURROUNDINGS = """
import sys, beside
print(sys.argv, sys.path[0], __name__, __file__, __package__, beside.word)
print(sys.modules["__main__"].__dict__ is globals())
import pickle
class Own: pass
print(type(pickle.loads(pickle.dumps(Own()))) is Own)
"""


def test_a_script_finds_what_it_would_find_under_python(folder):
    write("deep/script.py", SURROUNDINGS)
    write("deep/beside.py", "word = 'beside'")
    words = ["deep/script.py", "--lr", "3", "-h", "--", "--debug", ""]
    assert as_tbscope(*words) == as_python(*words)
    assert as_tbscope(*words)[1].startswith("['deep/script.py', '--lr', '3', '-h', '--', ")


def test_a_module_finds_what_it_would_find_under_python(folder):
    write("package/__init__.py", "")
    write("package/script.py", SURROUNDINGS)
    write("beside.py", "word = 'in the working directory'")
    code, out, told = as_tbscope("-m", "package.script", "--lr", "3")
    expected = as_python("-m", "package.script", "--lr", "3")
    assert (code, out, told) == expected
    assert "'--lr', '3'" in out


@pytest.mark.parametrize(
    "ending",
    [
        *("sys.exit()", "sys.exit(0)", "sys.exit(3)", "sys.exit('a last word')", "os._exit(7)"),
        *("1 / 0", "raise SystemExit", "import nowhere", "raise KeyError('x') from OSError(2)"),
        *("def", "raise BaseException", "import click; raise click.UsageError('mine')"),
        *("import click; raise click.exceptions.Exit(5)", "raise BrokenPipeError(32, 'gone')"),
        "import click; raise click.Abort",
    ],
)
def test_a_script_ends_as_it_would_under_python(folder, ending):
    write("script.py", f"import os, sys\ndef end():\n    {ending}\nend()\n")
    code, out, told = as_tbscope("script.py")
    assert (code, out, told) == as_python("script.py")


def test_an_interrupted_script_tells_where_it_was_and_ends_as_interrupted(folder):
    write("script.py", "def wait():\n    raise KeyboardInterrupt\nwait()\n")
    code, _, told = as_tbscope("script.py")
    assert code == 130
    expected, _, wanted = as_python("script.py")
    assert expected == -signal.SIGINT
    assert told == wanted


def test_a_hook_of_the_scripts_own_tells_its_error(folder):
    hook = "import sys\nsys.excepthook = lambda kind, error, trace: print(kind, trace.tb_lineno)\n"
    write("script.py", hook + "1 / 0\n")
    assert as_tbscope("script.py") == (1, "<class 'ZeroDivisionError'> 3\n", "")


def test_a_directory_runs_as_under_python(folder):
    write("app/__main__.py", "import sys, beside; print(sys.argv, beside.word)")
    write("app/beside.py", "word = 'beside'")
    assert as_tbscope("app", "x") == as_python("app", "x") == (0, "['app', 'x'] beside\n", "")


def test_what_cannot_be_run_is_refused(folder):
    assert misused("run", "nothere.py") == (
        "Error: There is no file 'nothere.py'. A module is run with -m."
    )
    assert "Missing argument 'SCRIPT'" in misused("run")
    assert "No such option" in misused("run", "--levels", "x.py")
    assert "'keras' is not one of 'tf', 'torch'" in misused("run", "--style", "keras", "x.py")


def test_a_thread_that_outlives_the_script_draws_ours_too(folder):
    head, _, _ = TRAINING.format(width=3).partition("with SummaryWriter")
    # The writer is opened by the script: Python 3.12 starts no thread once the main thread ends.
    work = """
import threading
writer = SummaryWriter("log")

def work():
    threading.main_thread().join()
    with writer:
        writer.add_graph(Net(), torch.ones(1, 3))
    print("trained")

threading.Thread(target=work).start()
"""
    write("train.py", head + work)
    assert as_tbscope("train.py") == (0, "trained\n", "")
    (graph,) = graphs_in("log")
    assert "fc/weight" in {node.name for node in graph.node}


def test_torch_is_imported_by_the_script_alone(folder):
    write("script.py", "import sys; print('torch' in sys.modules)")
    done = run_process("run", "script.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_of_the_script_draws_ours_too(folder):
    head, _, rest = TRAINING.format(width=3).partition("with SummaryWriter")
    write(
        "train.py",
        f"{head}import os\nif os.fork():\n    os.wait()\nelse:\n  with SummaryWriter"
        + rest.replace("\n    ", "\n      ").replace("\nprint", "\n  print"),
    )
    assert as_tbscope("train.py") == (0, "trained\n", "")
    (graph,) = graphs_in("log")
    assert "fc/weight" in {node.name for node in graph.node}
