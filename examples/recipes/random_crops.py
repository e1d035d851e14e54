"""get_batch() without a DataLoader: a data set whose samples are random crops.

samebits run -n 2 examples/recipes/random_crops.py
"""

import inspect

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import samebits

LENGTH, STEPS, BATCH = 16, 60, 32


class Crops(Dataset):
    """`get_batch` drew BATCH places at once; here each sample draws its own.

    Length: what the training takes.
    """

    def __init__(self, text):
        self.text = text

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, _):
        place = int(torch.randint(len(self.text) - LENGTH, ()))
        crop = self.text[place : place + LENGTH + 1]
        return crop[:-1], crop[1:]


run = samebits.init(seed=0, lanes=4, threads=1)
model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(Crops(torch.tensor(list(inspect.getsource(inspect).encode()))), batch_size=BATCH)
model, optimizer, loader = run.prepare(model, optimizer, loader)

for step in run.steps(loader):
    for x, y in step:
        run.backward(F.cross_entropy(model(x).flatten(0, 1), y.flatten()))
    optimizer.step()
    optimizer.zero_grad()
    run.log(loss=step.loss)
