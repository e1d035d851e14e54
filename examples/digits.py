"""Handwritten digits: a small CNN with BatchNorm and dropout, 1,437 real pictures to train on and 360 to test with.

    samebits run -n 2 examples/digits.py
    samebits verify --ranks 1,2,4 --steps 20 examples/digits.py

About ten seconds on two cores, to 99 % of the test pictures.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import samebits


class Net(nn.Module):
    """1 x 8 x 8 pictures to 10 classes; 31,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(64)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(64 * 2 * 2, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = F.max_pool2d(F.relu(self.norm1(self.conv1(images))), 2)
        hidden = F.max_pool2d(F.relu(self.norm2(self.conv2(hidden))), 2)
        return self.head(self.dropout(hidden.flatten(1)))


def data(wrong: int | None = None) -> tuple[torch.utils.data.Dataset, torch.utils.data.Dataset]:
    """The training and the test set, split by a fixed shuffle; picture `wrong` of all has another label."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    if wrong is not None:
        labels[wrong] = 9 - labels[wrong]
    everything = TensorDataset(images, labels)
    train_set, test_set = random_split(everything, [1437, 360], torch.Generator().manual_seed(0))
    return train_set, test_set


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--weights", default="digits.safetensors", help="where the trained weights go")
    parser.add_argument("--wrong-label", type=int, metavar="I", help="give picture I another label: an audit finds it")
    options = parser.parse_args()

    run = samebits.init(seed=0, lanes=4, threads=1)
    train_set, test_set = data(options.wrong_label)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    loader = DataLoader(train_set, batch_size=64, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=256)
    model, optimizer, scheduler, loader, test_loader = run.prepare(model, optimizer, scheduler, loader, test_loader)

    for epoch in run.epochs(options.epochs):
        model.train()
        for step in run.steps(loader):
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
        accuracy = tally.mean()["accuracy"]
        run.log(accuracy=accuracy)
        run.print(f"epoch {epoch + 1:2d}  loss {step.loss:.4f}  test accuracy {accuracy:.2%}")

    run.save_weights(model, options.weights)


if __name__ == "__main__":
    main()
