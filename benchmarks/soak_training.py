"""What `soak` trains: the digits example's network, its pictures fetched by a loader worker.

lockstep run -n 2 benchmarks/soak_training.py EPOCHS
"""

import runpy
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import lockstep

digits = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "digits.py"))

run = lockstep.init(seed=0, lanes=4, threads=1)
model = digits["Net"]()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(digits["data"]()[0], batch_size=64, shuffle=True, num_workers=1, persistent_workers=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for _ in run.epochs(int(sys.argv[1])):
    for step in run.steps(loader):
        for images, labels in step:
            run.backward(F.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
