"""Real ranks for tests: processes that talk over gloo, started from one that has torch already."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import traceback
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

_WAIT_S = 200


def on_ranks(target, count, folder, *args):
    """Run a function of a module on some ranks; give what each rank returned, by rank.

    Args:
        target: Takes its rank, the number of ranks, and the further arguments.
        count: How many ranks there are.
        folder: A folder that is there for these ranks alone.
        args: Further arguments.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warmed"])
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.ensure_running()
    ranks = [
        context.Process(target=_run, args=(target, rank, count, str(folder), args), daemon=True)
        for rank in range(count)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(_WAIT_S)
    for rank in ranks:
        rank.kill()
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


def _run(target, rank, count, folder, args):
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
