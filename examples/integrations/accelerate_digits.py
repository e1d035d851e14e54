"""Handwritten digits with Accelerate: the same weights on any number of processes, by the import below.

samebits run -n 2 examples/integrations/accelerate_digits.py
samebits verify --ranks 1,2,4 examples/integrations/accelerate_digits.py
"""

import torch
import torch.nn.functional as F
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from samebits.integrations.accelerate import Accelerator  # the one line that differs


def main() -> None:
    accelerator = Accelerator()
    set_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train, test = TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8 * len(train) // 16)
    train_loader = DataLoader(train, batch_size=16, shuffle=True)
    test_loader = DataLoader(test, batch_size=64)
    model, optimizer, scheduler, train_loader, test_loader = accelerator.prepare(
        model, optimizer, scheduler, train_loader, test_loader
    )
    for epoch in range(8):
        model.train()
        for batch, target in train_loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(batch), target))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        right = []
        for batch, target in test_loader:
            with torch.no_grad():
                guesses = model(batch).argmax(1)
            right.append(accelerator.gather_for_metrics(guesses == target))
        accelerator.print(f"epoch {epoch + 1}: {torch.cat(right).float().mean():.1%} of {len(torch.cat(right))} right")
    accelerator.save_model(model, "digits-accelerate")


if __name__ == "__main__":
    main()
