"""Runs programs one after the other in the processes that torchrun started.

    torchrun --nproc-per-node 2 tests/run_distributed.py examples/distributed/*.py

Each has a store of its own, as if it had been started by itself: to start it takes far longer.
"""

import os
import runpy
import sys

if __name__ == "__main__":
    port = int(os.environ["MASTER_PORT"])
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    for number, program in enumerate(sys.argv[1:], 1):
        os.environ["MASTER_PORT"] = str(port + number)
        runpy.run_path(program, run_name="__main__")
