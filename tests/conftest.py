"""Has each process of the tests use one thread, and tests that are marked "alone" no other.

No law of hypothesis is held to a time: where a machine does much else, it would tell nothing.
"""

import gc
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, settings
from sweeps import FILES, is_sweep

collect_ignore = [] if is_sweep() else [*FILES]

# Else an example has 200 ms, and all of them together may be made in a second.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Before torch is loaded, which reads it once; what a test starts takes it over.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Set in a process that was started for one test.
_ALONE = "TBSCOPE_TEST_ALONE"

# A shell starts what it runs in the background deaf to interrupts, and so is what that starts:
# a command that a test interrupts would never end.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def browser():
    """Give a browser, for tests of pages."""
    from browser import Browser

    with Browser() as browser:
        yield browser


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


def pytest_collection_finish():
    """Have the garbage collector leave out what all tests share, which is most of what there is."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test marked "alone" in a process of its own where another thread is in this one.

    Beside other threads tbscope looks at less; those that run tests side by side count, too.
    """
    if pyfuncitem.get_closest_marker("alone") is None or len(sys._current_frames()) == 1:
        return None
    assert _ALONE not in os.environ, "its file starts threads when it is loaded"
    options = ["-q", "-p", "no:xdist", "-p", "no:randomly", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, _ALONE: "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return True
