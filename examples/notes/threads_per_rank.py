"""Threads per rank (note a): torchrun sets 1 and advises to tune; samebits takes cores / ranks, or what it is told.

    $ samebits run -n 2 --threads 2 examples/notes/threads_per_rank.py
    rank 0 of 2: 2 threads
    rank 1 of 2: 2 threads

OMP_NUM_THREADS=2 does the same. Without either it is cores / ranks (the note's 12 cores and 2 ranks: 6 each). Cores are
those that this process may use, as `nproc` counts them; `htop` shows the machine's. More threads than cores slow every
rank down. The number of threads changes the bits of CPU kernels, so set it where bits count:
`samebits.init(threads=1)`.
"""

import os

import torch

print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: {torch.get_num_threads()} threads")
