"""Truncated backpropagation through time: a GRU reads 32 streams of text and keeps its state from step to step.

samebits run -n 2 examples/recipes/carried_state.py

`run.per_lane` keeps the states of each lane's streams, and every rank knows those of all: so each saved state holds them, and a
run that has lost a rank goes on with the same bits. A variable of the script would go from lane to lane, and begin anew.
"""

import inspect

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits

STREAMS, WINDOW = 32, 16

text = torch.tensor(list(inspect.getsource(inspect).encode()[: 16 * 1024]))
streams = text.unfold(0, WINDOW + 1, WINDOW)  # windows that follow each other, each with the next byte
num_windows = len(streams) // STREAMS  # of each stream


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru, self.head = (
            nn.Embedding(256, 32),
            nn.GRU(32, 64, batch_first=True),
            nn.Linear(64, 256),
        )

    def forward(self, windows, state):
        seen, state = self.gru(self.embedding(windows), state)
        return self.head(seen), state


run = samebits.init(seed=0, lanes=4, threads=1)
model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
# Step k has window k of each stream, so a stream is always in the same lane.
starts = [stream * num_windows for stream in range(STREAMS)]
order = [[start + k for start in starts] for k in range(num_windows)]
loader = DataLoader(streams, batch_sampler=order)
model, optimizer, loader = run.prepare(model, optimizer, loader)

carried = run.per_lane(lambda: None)  # a GRU takes None for a state of zeros
for _epoch in run.epochs(2):
    carried.reset()
    for step in run.steps(loader):
        for windows in step:
            scores, state = model(windows[:, :-1], carried.value)
            carried.value = state.detach()
            run.backward(F.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten()))
        run.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
