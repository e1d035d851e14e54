"""Optimizers that evaluate the loss several times in a step (LBFGS, SAM): the closure goes through the step's lanes.

samebits run -n 2 examples/recipes/closures.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits

digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)

run = samebits.init(seed=0, lanes=4, threads=1)
model = nn.Linear(64, 10)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
loader = DataLoader(TensorDataset(images, labels), batch_size=len(images))  # LBFGS wants the same loss each time
model, optimizer, loader = run.prepare(model, optimizer, loader)

for _epoch in run.epochs(5):
    for step in run.steps(loader):

        def closure(step=step):
            optimizer.zero_grad()
            for x, y in step:  # a pass, as often as the optimizer asks
                run.backward(F.cross_entropy(model(x), y))
            return step.loss

        optimizer.step(closure)
        run.log(loss=step.loss)
