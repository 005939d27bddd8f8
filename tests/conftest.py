"""Has each process of the tests use one thread, and tests that are marked "alone" no other.

No law of hypothesis is held to a time: where a machine does much else, it would tell nothing.
"""

import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
from pathlib import Path

import doctest_folder
import pytest
from exporters import remember_operators
from hypothesis import HealthCheck, settings
from sweeps import FILES, counted, is_sweep

from tests.warm import run_tests_warm

# Modules that load all others have no examples, and scripts train when they are imported.
collect_ignore = ["warmed.py", "scripts", *([] if is_sweep() else FILES)]

# Else each process compiles every test anew, which is half of what it takes to collect them.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Else an example has 200 ms, and all of them together may be made in a second.
settings.register_profile(
    "patient",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=counted(100, 40),
)
settings.load_profile("patient")

# Before torch is loaded, which reads it once; what a test starts takes it over.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Set in a process that was started for one test.
_ALONE = "TBSCOPE_TEST_ALONE"

# A shell starts what it runs in the background deaf to interrupts, and so is what that starts:
# a command that a test interrupts would never end.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Have the examples in docstrings run in a folder, too: they are outside of this one."""
    config.pluginmanager.register(doctest_folder)


@pytest.fixture(scope="session")
def chromium():
    """Give the one browser of a process."""
    from browser import Browser

    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def browser(chromium):
    """Give the browser, for the tests of pages in a module."""
    with chromium.lent():
        yield chromium


@pytest.fixture(scope="module")
def server(logdir):
    """Give TensorBoard on the log that a fixture of the module writes."""
    from browser import TensorBoard

    with TensorBoard(logdir) as server:
        yield server


@pytest.fixture
def show(browser, server):
    """Open the tab; at the end, see that nothing went wrong in it."""
    from tab import Tab

    opened = []

    def open_tab(address="", **options):
        opened.append(Tab(browser, server.url, address, **options))
        return opened[-1]

    yield open_tab
    for tab in opened:
        tab.close()


@pytest.fixture(scope="module", autouse=True)
def few_objects():
    """Have the garbage collector leave out what is there as a module begins.

    It would look at all of it again and again, and so would each run on fake tensors, for the
    caches that hold some.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def logged(monkeypatch):
    """Give the list to which all that is logged goes, and nowhere else."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if not getattr(logger, "propagate", True) or logger is logging.root:
            monkeypatch.setattr(logger, "handlers", [handler])
    return records


@pytest.fixture(autouse=True)
def nobody_waits():
    """End what waits for a training step that never comes: until then all models run uncompiled."""
    yield
    active = sys.modules.get("tbscope.sources.eager.thread_state")
    for each in tuple(active.waiting) if active else ():
        each.remove()
    torch = sys.modules.get("torch")
    if active and torch.compile.__module__ != "torch":
        gc.collect()
        assert torch.compile.__module__ == "torch", "the test left all models uncompiled"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Give one process more than there are cores: many tests wait for a browser or a server."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """Have each of several processes begin with other tests: what one compiles, the others load.

    The garbage collector would look again and again at what stays.
    """
    gc.disable()
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    names = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    first = int(worker["workerid"].removeprefix("gw")) * len(names) // worker["workercount"]
    for name in [*names[first:], *names[:first]]:
        if f"{name}.py" not in collect_ignore:
            # What fails fails once more where it is collected, and is told there.
            with contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(name)


def pytest_collection_finish():
    """Have the garbage collector leave out what all tests share, which is most of what there is."""
    if "onnx" in sys.modules:
        remember_operators()
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test marked "alone" in a process of its own where another thread is in this one.

    Beside other threads tbscope looks at less; those that run tests side by side count, too.
    """
    if pyfuncitem.get_closest_marker("alone") is None or len(sys._current_frames()) == 1:
        return None
    assert _ALONE not in os.environ, "its file starts threads when it is loaded"
    done = run_tests_warm(pyfuncitem.nodeid, env={_ALONE: "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return True
