"""One model with what most models have: convolutions, BatchNorm, attention, dropout, embeddings; AdamW.

Its last lines are the loss, to the bit, and a hash of all parameters and buffers.
"""

import argparse
import hashlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits

BATCH, SIDE, WORDS, WIDTH, CLASSES = 32, 16, 64, 96, 10


class Mixture(nn.Module):
    """(batch, 3, SIDE, SIDE) pictures and (batch, 8) words to CLASSES scores."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(32), nn.GELU(),
            nn.Conv2d(32, WIDTH, 3, 2, 1), nn.MaxPool2d(2),
        )  # fmt: skip
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(24, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.1, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, pictures, words):
        seen = self.stem(pictures).flatten(2).transpose(1, 2)
        hidden = torch.cat([seen, self.words(words)], 1)
        hidden = F.dropout(hidden + self.places.weight[: hidden.shape[1]], 0.1, self.training)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(self.norm(hidden).mean(1))


def data(number):
    pictures, words = torch.randn(number, 3, SIDE, SIDE), torch.randint(0, WORDS, (number, 8))
    return TensorDataset(pictures, words, (words.sum(1) + (pictures.mean((1, 2, 3)) > 0)) % CLASSES)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    run = samebits.init(seed=0, lanes=4, threads=1)
    model = Mixture()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model, optimizer, loader = run.prepare(
        model, optimizer, DataLoader(data(options.steps * BATCH), BATCH, shuffle=True)
    )
    for step in run.steps(loader):
        for pictures, words, labels in step:
            run.backward(F.cross_entropy(model(pictures, words), labels))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    run.print(f"loss {step.loss.hex()} on {run.device.type}")
    run.print(f"weights {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
