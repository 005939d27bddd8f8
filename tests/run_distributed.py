"""Runs programs one after the other in the processes that torchrun started.

    torchrun --nproc-per-node 2 tests/run_distributed.py examples/distributed/*.py

Each has a store of its own, as if it had been started by itself: to start it takes far longer.
"""

import os
import runpy
import socket
import sys

from torch.distributed import TCPStore


def free_port():
    """Give a port that is free now: the next one to torchrun's may be taken."""
    with socket.socket() as unused:
        unused.bind(("", 0))
        return unused.getsockname()[1]


if __name__ == "__main__":
    told = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    for program in sys.argv[1:]:
        if os.environ["RANK"] == "0":
            told.set(program, str(free_port()))
        os.environ["MASTER_PORT"] = told.get(program).decode()
        # As Python does for a program that it starts.
        sys.path[0] = os.path.dirname(os.path.abspath(program))
        runpy.run_path(program, run_name="__main__")
