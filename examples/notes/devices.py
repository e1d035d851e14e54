"""Is PyTorch using the GPUs (note d), and which ones may it see?

    $ python examples/notes/devices.py
    torch ..., CUDA of the wheel ...
    0 devices: []
    backends: gloo..., no MPI: True

With CUDA_VISIBLE_DEVICES=0,1 in front it lists those two. The CUDA that matters is the one inside the wheel
(`torch.version.cuda`). `nvcc -V` is the toolkit, which only a build from source uses; `nvidia-smi` shows the newest
CUDA that the driver can run, which must not be older than the wheel's.
"""

import torch
import torch.distributed as dist

names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
wheel = torch.version.cuda or "none"
print(f"torch {torch.__version__}, CUDA of the wheel {wheel}")
print(f"{len(names)} devices: {names}")
available = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
print(f"backends: {' '.join(name for name, there in available.items() if there)}, no MPI: {not available['mpi']}")
