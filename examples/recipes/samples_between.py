"""Text that the model writes in the middle of its training: what is drawn behind the lanes changes nothing in them.

samebits run -n 2 examples/recipes/samples_between.py
"""

import inspect
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits

LENGTH = 16
SAMPLES = int(os.environ.get("SAMPLES", "2"))  # how many to write each time; the weights are the same with none

text = torch.tensor(list(inspect.getsource(inspect).encode()[: 16 * 1024]))
windows = text.unfold(0, LENGTH + 1, LENGTH)  # each with the next byte


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(256, 32), nn.GRU(32, 64, batch_first=True)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(64, 256)

    def forward(self, seen, state=None):
        seen, state = self.gru(self.embedding(seen), state)
        return self.head(self.drop(seen)), state


@torch.no_grad()
def written(model, length=40):
    """A text, drawn byte by byte from the model."""
    model.eval()
    last, state, made = torch.tensor([[ord("\n")]]), None, []
    for _ in range(length):
        scores, state = model(last, state)
        last = torch.multinomial(scores[:, -1].softmax(1), 1)
        made.append(int(last))
    model.train()
    return bytes(made).decode(errors="replace")


run = samebits.init(seed=0, lanes=4, threads=1)
model = Writer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(windows, batch_size=32, shuffle=True))

for _epoch in run.epochs(3):
    for step in run.steps(loader):
        for window in step:
            scores, _ = model(window[:, :-1])
            run.backward(F.cross_entropy(scores.flatten(0, 1), window[:, 1:].flatten()))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
        if step.index % 10 == 9:  # on every rank: all draw the same, and one prints
            for _ in range(SAMPLES):
                run.print(repr(written(model)))
