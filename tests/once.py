"""Results that take long to make: of several processes of pytest, one makes each for all."""

import fcntl
import os
import pickle


def made_once(tmp_path_factory, name, make):
    """Give what a function returns, which can be pickled; others wait while one process calls it.

    Args:
        tmp_path_factory: The fixture.
        name: The name of the result in this run of the tests.
        make: Takes an empty folder.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    path = shared / f"{name}.pickle"
    with open(shared / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            made = pickle.dumps(make(tmp_path_factory.mktemp(name)))
            path.write_bytes(made)
    return pickle.loads(path.read_bytes())
