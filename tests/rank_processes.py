"""Runs functions in several processes that form a process group, and gives what each returned.

    python -m tests.rank_processes tests.rank_programs plain fails

runs `plain` of that module, then `fails`, each in processes of its own, and prints the results in
JSON: for each function a list with what each rank returned, None for one that is gone. All are
forked from one process: `run_warm` forks that from one which has imported everything. Functions
that wait for a rank which never comes (`waits`) run at the same time.
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
    """Run some functions of a module, one after the other, but those that wait."""
    programs = [getattr(importlib.import_module(module), name) for name in names]
    waiting = [program for program in programs if hasattr(program, "waits")]
    apart = [[program] for program in programs if program not in waiting]
    found: dict[str, list[Any]] = {}
    for group in (*apart, waiting):
        found |= run(*group)
    return found


def run(*programs: Any) -> dict[str, list[Any]]:
    """Run functions at the same time, each in processes of a group that share a folder."""
    with tempfile.TemporaryDirectory() as parent:
        ranks = {
            program: [
                Path(parent, program.__name__, str(rank))
                for rank in range(getattr(program, "world", WORLD))
            ]
            for program in programs
        }
        children = []
        for program, results in ranks.items():
            results[0].parent.mkdir()
            for rank, result in enumerate(results):
                children.append(os.fork() or _child(program, rank, len(results), result))
        for child in children:
            os.waitpid(child, 0)
        return {program.__name__: [*map(_read, results)] for program, results in ranks.items()}


def _read(result: Path) -> Any:
    return json.loads(result.read_text()) if result.exists() else None


def _child(program: Any, rank: int, world: int, result: Path) -> int:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = result.parent
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    try:
        told = program(folder)
        (folder / f"part{rank}").write_text(json.dumps(told))
        (folder / f"part{rank}").rename(result)
    except BaseException:  # noqa: BLE001  It is printed, and the result is missing.
        traceback.print_exc()
    sys.stderr.flush()
    # Without leaving the group: nobody waits for anybody.
    os._exit(0)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2:])))
