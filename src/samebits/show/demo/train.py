"""What `samebits demo` trains: 1,797 handwritten digits, a small CNN with BatchNorm and dropout, 12 epochs.

An ordinary script; `samebits run -n 2` starts it as well. The pictures are the test set of the UCI data set "Optical
Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998; CC BY 4.0), which scikit-learn also has.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import samebits

EPOCHS = 12
PAUSE_S = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
"""A wait in each step, so that a person has the time to kill something."""


def data() -> list[torch.utils.data.Subset[tuple[torch.Tensor, ...]]]:
    """The training and the test set, split by a fixed shuffle."""
    file = np.load(Path(__file__).with_name("digits.npz"))
    images = torch.from_numpy(file["images"]).unsqueeze(1).float() / 16
    everything = TensorDataset(images, torch.from_numpy(file["labels"]).long())
    return random_split(everything, [1437, 360], torch.Generator().manual_seed(0))


run = samebits.init(seed=0, lanes=4, threads=1)
train_set, test_set = data()
model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(256, 10)),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
loader = DataLoader(train_set, batch_size=64, shuffle=True)
test_loader = DataLoader(test_set, batch_size=256)
model, optimizer, scheduler, loader, test_loader = run.prepare(model, optimizer, scheduler, loader, test_loader)

for _ in run.epochs(EPOCHS):
    model.train()
    for step in run.steps(loader):
        time.sleep(PAUSE_S)
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
    scheduler.step()
    model.eval()
    tally = run.tally()
    with torch.no_grad():
        for images, labels in test_loader:
            tally.add(accuracy=(model(images).argmax(1) == labels).float().mean())
    run.log(accuracy=tally.mean()["accuracy"])
