"""Real ranks for tests: processes that talk over gloo, started from one that has torch already."""

import faulthandler
import os
import pickle
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist

from tests.warm import WarmProgram

_WAIT_S = 200
_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import processes
processes.run_rank(sys.argv[2], int(sys.argv[3]))
"""


def on_ranks(target, count, folder, *args):
    """Run a function of a module on some ranks; give what each rank returned, by rank.

    Args:
        target: Takes its rank, the number of ranks, and the further arguments.
        count: How many ranks there are.
        folder: A folder that is there for these ranks alone.
        args: Further arguments.
    """
    Path(folder, "order.pickle").write_bytes(pickle.dumps((target, count, args)))
    words = ("-c", _PROGRAM, Path(__file__).parent, folder)
    ranks = [WarmProgram(*words, rank) for rank in range(count)]
    with ThreadPoolExecutor(count) as readers:
        sys.stderr.writelines(readers.map(lambda rank: rank.stderr.read(), ranks))
    for rank in ranks:
        rank.end()
    told = [Path(folder) / f"{rank}.pickle" for rank in range(count)]
    results = [pickle.loads(one.read_bytes()) if one.exists() else "nothing" for one in told]
    failed = [result for result in results if isinstance(result, str)]
    assert not failed, "\n".join(failed)
    return results


def torchrun(count, program, *args, cwd, options=()):
    """Run a program in processes that torchrun starts; give what became of it.

    Args:
        count: How many processes there are.
        program: Its file.
        args: Its arguments.
        cwd: The folder in which it runs.
        options: Further options of torchrun.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *options]
    command += ["--nproc-per-node", str(count), str(program), *map(str, args)]
    with subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            out, errors = run.communicate(timeout=_WAIT_S)
        except subprocess.TimeoutExpired:
            # It ends its processes; killed, it would leave them behind.
            run.terminate()
            out, errors = run.communicate()
    return subprocess.CompletedProcess(command, run.returncode, out, errors)


def run_rank(folder, rank):
    """Be a rank: do what the process that started it has ordered."""
    faulthandler.dump_traceback_later(_WAIT_S, exit=True)
    target, count, args = pickle.loads(Path(folder, "order.pickle").read_bytes())
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", count), rank=rank, world_size=count
    )
    try:
        result = target(rank, count, *args)
    except BaseException:  # noqa: BLE001  It fails in the process that asked for it.
        result = traceback.format_exc()
    Path(folder, f"{rank}.part").write_bytes(pickle.dumps(result))
    os.replace(f"{folder}/{rank}.part", f"{folder}/{rank}.pickle")
    if not isinstance(result, str):
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
