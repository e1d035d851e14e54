"""The script of the quick start: handwritten digits in twenty lines.

samebits run -n 2 examples/quickstart.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import samebits

run = samebits.init(seed=0, lanes=4, threads=1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 64),
    torch.nn.ReLU(),
    torch.nn.Linear(64, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)

for epoch in run.epochs(3):
    for step in run.steps(loader):
        for x, y in step:
            run.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    run.print(f"epoch {epoch + 1}  loss {step.loss:.4f}")
run.save_weights(model, "digits.safetensors")
