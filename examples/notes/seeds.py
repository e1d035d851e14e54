"""Seeds and flags (note e): what each call does, and `samebits.init(seed=0)`, which makes them all.

    $ samebits run -n 1 examples/notes/seeds.py
    $ samebits run -n 2 examples/notes/seeds.py
    cudnn.deterministic without a seed: two draws are equal: False
    torch.manual_seed(0) twice: two draws are equal: True
    torch.manual_seed(0) covers NumPy: False
    torch.manual_seed(0) covers the 0 GPUs here: True
    after init: cudnn.deterministic True, cudnn.benchmark False, deterministic algorithms True
    step 0, lane of sample 0: torch 0..., NumPy 0..., random 0...
    step 0, lane of sample 1: torch 0..., NumPy 0..., random 0...
    step 1, lane of sample 2: torch 0..., NumPy 0..., random 0...
    step 1, lane of sample 3: torch 0..., NumPy 0..., random 0...

`cudnn.deterministic` chooses kernels and seeds nothing. With a seed per process (`manual_seed(seed + rank)`) the
numbers change with the number of ranks; here they belong to the step and the lane.
"""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

import samebits


def draws_after(prepare) -> bool:
    """Whether two draws are equal when `prepare` is called before each."""
    drawn = []
    for _ in range(2):
        prepare()
        drawn.append(torch.rand(3))
    return torch.equal(*drawn)


def set_the_flag() -> None:
    torch.backends.cudnn.deterministic = True


print(f"cudnn.deterministic without a seed: two draws are equal: {draws_after(set_the_flag)}")
print(f"torch.manual_seed(0) twice: two draws are equal: {draws_after(lambda: torch.manual_seed(0))}")
numpy_before = np.random.get_state()[1].copy()
torch.manual_seed(0)
print(f"torch.manual_seed(0) covers NumPy: {not np.array_equal(numpy_before, np.random.get_state()[1])}")
gpu_seeds = {torch.cuda.default_generators[i].initial_seed() for i in range(torch.cuda.device_count())}
print(f"torch.manual_seed(0) covers the {torch.cuda.device_count()} GPUs here: {gpu_seeds <= {0}}")

run = samebits.init(seed=0, lanes=2, threads=1)
cudnn, exact = torch.backends.cudnn, torch.are_deterministic_algorithms_enabled()
print(f"after init: cudnn.deterministic {cudnn.deterministic}, cudnn.benchmark {cudnn.benchmark}, ", end="")
print(f"deterministic algorithms {exact}")

model = nn.Linear(1, 1)
loader = DataLoader(torch.arange(4.0).unsqueeze(1), batch_size=2)
model, loader = run.prepare(model, loader)
for step in run.steps(loader):
    for samples in step:
        drawn = f"torch {torch.rand(1).item():.4f}, NumPy {np.random.rand():.4f}, random {random.random():.4f}"
        print(f"step {step.index}, lane of sample {samples[0].item():.0f}: {drawn}")
        run.backward(model(samples).mean())
    model.zero_grad()
