"""Note c's ToyModel in samebits: written for one device, cut by one option, with the bits of one rank.

    $ samebits run -n 1 examples/notes/toy_model_samebits.py
    $ samebits run -n 2 --strategy model_parallel examples/notes/toy_model_samebits.py
    the last loss, to the bit: 0x...
    saved 4 tensors, sha256 ...

The model says nothing about devices. `model_parallel` watches one forward, measures the layers and gives each rank its
part; a rank has memory for its own parameters only.
"""

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.net2(self.relu(self.net1(inputs)))


run = samebits.init(seed=0, lanes=2, threads=1)
model = ToyModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loader = DataLoader(TensorDataset(torch.randn(80, 10), torch.randn(80, 5)), batch_size=20, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)

for step in run.steps(loader):
    step.backward(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
    optimizer.step()
    optimizer.zero_grad()
run.print(f"the last loss, to the bit: {float(step.loss).hex()}")
run.save_weights(model, "toy.safetensors")  # whole, whoever holds which layer
content = Path("toy.safetensors").read_bytes()
run.print(f"saved {len(load_file('toy.safetensors'))} tensors, sha256 {hashlib.sha256(content).hexdigest()[:16]}")
