"""DataParallel's shapes (note c): 100 samples in batches of 30; outside the model 30, inside each replica 15.

    $ samebits run -n 2 --strategy dp examples/notes/data_parallel_shapes.py
        In Model: input size torch.Size([15, 5]) output size torch.Size([15, 2])
        In Model: input size torch.Size([15, 5]) output size torch.Size([15, 2])
    Outside: input size torch.Size([30, 5]) output_size torch.Size([30, 2])
        In Model: input size torch.Size([15, 5]) output size torch.Size([15, 2])
        In Model: input size torch.Size([15, 5]) output size torch.Size([15, 2])
    Outside: input size torch.Size([30, 5]) output_size torch.Size([30, 2])
        In Model: input size torch.Size([15, 5]) output size torch.Size([15, 2])
        In Model: input size torch.Size([15, 5]) output size torch.Size([15, 2])
    Outside: input size torch.Size([30, 5]) output_size torch.Size([30, 2])
        In Model: input size torch.Size([5, 5]) output size torch.Size([5, 2])
        In Model: input size torch.Size([5, 5]) output size torch.Size([5, 2])
    Outside: input size torch.Size([10, 5]) output_size torch.Size([10, 2])

One process and a replica per device; without GPUs two threads. torch itself cuts nothing where there is no GPU.
`--strategy ddp` is faster and has the bits of one rank.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits


class Model(nn.Module):
    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.fc = nn.Linear(input_size, output_size)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output = self.fc(inputs)
        print(f"    In Model: input size {inputs.size()} output size {output.size()}\n", end="")  # from two threads
        return output


run = samebits.init(seed=0, threads=1)
model = Model(5, 2)
loader = DataLoader(TensorDataset(torch.randn(100, 5)), batch_size=30)
model, loader = run.prepare(model, loader)
with torch.no_grad():
    for (samples,) in loader:
        output = model(samples)
        print(f"Outside: input size {samples.size()} output_size {output.size()}")
