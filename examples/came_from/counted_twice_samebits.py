"""A prepared loader that is iterated evaluates: each sample once, on any number of processes."""

import torch
from torch.utils.data import DataLoader

import samebits

run = samebits.init(seed=0, lanes=4, threads=1)
is_right = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])
loader = run.prepare(DataLoader(is_right, batch_size=2))
tally = run.tally()
for batch in loader:
    tally.add(accuracy=batch)
run.print(f"accuracy {tally.mean()['accuracy']:.3f}")
