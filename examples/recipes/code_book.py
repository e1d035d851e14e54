"""A VQ-VAE whose code book follows the codes' means (EMA): buffers that are sums over the lanes.

samebits run -n 2 examples/recipes/code_book.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits

images = torch.tensor(load_digits().data / 16, dtype=torch.float32)


class CodeBook(nn.Module):
    """Codes that follow the mean of the vectors that are nearest to them (van den Oord et al. 2017, appendix A.1)."""

    def __init__(self, num_codes, size, decay=0.95):
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(num_codes, size))
        self.register_buffer("count", torch.ones(num_codes))
        self.register_buffer("total", self.codes.clone())
        self.register_buffer("new_count", torch.zeros(num_codes))
        self.register_buffer("new_total", torch.zeros(num_codes, size))

    def forward(self, vectors):
        nearest = torch.cdist(vectors, self.codes).argmin(1)
        codes = self.codes[nearest]
        if self.training:  # in a lane: only add up
            chosen = F.one_hot(nearest, len(self.codes)).to(vectors.dtype)
            self.new_count += chosen.sum(0)
            self.new_total += chosen.T @ vectors.detach()
        return vectors + (codes - vectors).detach(), F.mse_loss(vectors, codes)

    @torch.no_grad()
    def follow(self):
        """After the lanes: the sums are those of the whole batch."""
        self.count.lerp_(self.new_count, 1 - self.decay)
        self.total.lerp_(self.new_total, 1 - self.decay)
        self.codes.copy_(self.total / self.count.clamp(min=1e-3)[:, None])
        self.new_count.zero_()
        self.new_total.zero_()


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        self.book = CodeBook(num_codes=64, size=8)
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x):
        codes, distance = self.book(self.encoder(x))
        return F.mse_loss(self.decoder(codes), x) + 0.25 * distance


run = samebits.init(seed=0, lanes=4, threads=1)
model = Autoencoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
loader = DataLoader(TensorDataset(images), batch_size=64, shuffle=True)
buffers = {"book.new_*": "sum"}
model, optimizer, loader = run.prepare(model, optimizer, loader, buffers=buffers)

for _epoch in run.epochs(8):
    for step in run.steps(loader):
        for (x,) in step:
            run.backward(model(x))
        optimizer.step()
        optimizer.zero_grad()
        model.book.follow()
        run.log(loss=step.loss)
