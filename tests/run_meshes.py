"""Runs models on device meshes in the processes that torchrun started: on all, then on four.

    torchrun --nproc-per-node 8 tests/run_meshes.py FOLDER

Each rank leaves in the folder what it tells of each model.
"""

import pickle
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from mesh_models import ON_EIGHT, ON_FOUR
from parallel_models import all_told

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    told = all_told(rank, 8, ON_EIGHT)
    dist.barrier()
    dist.destroy_process_group()
    if rank < 4:
        store = dist.FileStore(str(folder / "store"), 4)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
        told |= all_told(rank, 4, ON_FOUR)
        dist.barrier()
        dist.destroy_process_group()
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(told))
