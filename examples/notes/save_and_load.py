"""Weights of a DDP model (note b): saved without the wrapper, loaded by all ranks to go on, loaded alone to test.

    $ samebits run -n 2 --threads 1 examples/notes/save_and_load.py
    keys of model.state_dict(): module.0.weight, module.0.bias, module.2.weight, module.2.bias
    keys of model.module.state_dict(): 0.weight, 0.bias, 2.weight, 2.bias
    rank 0 resumes with the saved weights: True
    rank 1 resumes with the saved weights: True
    alone, in eval mode: the same weights: True

`map_location="cpu"` puts the file's tensors nowhere near a GPU; `load_state_dict` copies them to where the model is.
Without it every rank opens the tensors on the device that rank 0 saved them from, so GPU 0 holds a copy for each rank.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, yours = one.state_dict(), other.state_dict()
    return mine.keys() == yours.keys() and all(torch.equal(mine[name], yours[name]) for name in mine)


dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(network())  # rank 0's weights go to all
place = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(place)
path = Path(place[0]) / "checkpoint.pth.tar"
if rank == 0:
    print(f"keys of model.state_dict(): {', '.join(model.state_dict())}")
    print(f"keys of model.module.state_dict(): {', '.join(model.module.state_dict())}")
    torch.save({"model_state_dict": model.module.state_dict()}, path)
dist.barrier()

resumed = DistributedDataParallel(network())
resumed.module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True)["model_state_dict"])
print(f"rank {rank} resumes with the saved weights: {same(resumed.module, model.module)}")

dist.barrier()
if rank == 0:
    alone = network().eval()
    alone.load_state_dict(torch.load(path, map_location="cpu", weights_only=True)["model_state_dict"])
    print(f"alone, in eval mode: the same weights: {same(alone, model.module)}")
    path.unlink()
    path.parent.rmdir()
dist.destroy_process_group()
