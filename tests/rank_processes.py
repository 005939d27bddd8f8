"""Runs functions in several processes that form a process group, and gives what each returned.

    python -m tests.rank_processes tests.rank_programs plain fails

runs `plain` of that module, then `fails`, each in processes of its own, and prints the results in
JSON: for each function a list with what each rank returned, None for one that is gone. All are
forked from one process: `run_warm` forks that from one which has imported everything.
"""

import importlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

WORLD = 3


def main(module: str, names: list[str]) -> dict[str, list[Any]]:
    """Run some functions of a module, one after the other."""
    programs = importlib.import_module(module)
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = run(getattr(programs, name), Path(folder))
    return found


def run(program: Any, folder: Path) -> list[Any]:
    """Run one function in processes of a group; it is given a folder that all share."""
    world = getattr(program, "world", WORLD)
    children = [os.fork() or _child(program, rank, world, folder) for rank in range(world)]
    for child in children:
        os.waitpid(child, 0)
    results = [folder / f"result{rank}.json" for rank in range(world)]
    return [json.loads(path.read_text()) if path.exists() else None for path in results]


def _child(program: Any, rank: int, world: int, folder: Path) -> int:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    try:
        told = program(folder)
        (folder / f"part{rank}.json").write_text(json.dumps(told))
        (folder / f"part{rank}.json").rename(folder / f"result{rank}.json")
    except BaseException:  # noqa: BLE001  It is printed, and the result is missing.
        traceback.print_exc()
    sys.stderr.flush()
    # Without leaving the group: nobody waits for anybody.
    os._exit(0)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2:])))
