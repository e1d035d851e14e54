"""An exponential average of the weights (EMA) that evaluates: `evaluate` takes a model and, where wanted, a part of the data.

samebits run -n 2 examples/recipes/weight_ema.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import samebits

digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
train_set, test_set = TensorDataset(images[:1400], labels[:1400]), TensorDataset(images[1400:], labels[1400:])


@torch.no_grad()
def evaluate(model, loader, max_batches=None):
    """Mean loss and accuracy, over the first batches where wanted; equal on all ranks."""
    was_training = model.training
    model.eval()
    tally = run.tally()
    for x, y in loader if max_batches is None else loader.first(max_batches):
        scores = model(x)
        losses = F.cross_entropy(scores, y, reduction="none")
        tally.add(loss=losses, accuracy=(scores.argmax(1) == y).float())
    model.train(was_training)
    return tally.mean()


run = samebits.init(seed=0, lanes=4, threads=1)
model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98), use_buffers=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader, test_loader = DataLoader(train_set, batch_size=64, shuffle=True), DataLoader(test_set, batch_size=50)
model, average, optimizer, loader, test_loader = run.prepare(model, average, optimizer, loader, test_loader)

for _epoch in run.epochs(4):
    for step in run.steps(loader):
        for x, y in step:
            run.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
    run.log(quick=evaluate(average, test_loader, max_batches=3)["accuracy"])

run.log(plain=evaluate(model, test_loader)["accuracy"], **evaluate(average, test_loader))
