"""Note c's pipelined network in samebits: no split_size in the model; a lane is a micro-batch, and this is training.

    $ samebits run -n 1 examples/notes/pipelined_network_samebits.py
    $ samebits run -n 2 --strategy pipeline examples/notes/pipelined_network_samebits.py
    batch 120 in 6 lanes of 20
    the last loss, to the bit: 0x...

`--lanes` is the note's split_size inverted: 6 lanes of a batch of 120 are pieces of 20. More lanes leave the stages
idle for less time and cost more calls. `step.backward(loss_of)` lets the strategy order the forwards and backwards.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import samebits


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.norm1(self.conv1(inputs)))
        return torch.relu(inputs + self.norm2(self.conv2(hidden)))


run = samebits.init(seed=0, lanes=6, threads=1)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    *(Block(8) for _ in range(4)),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(8, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
images, labels = torch.randn(360, 3, 16, 16), torch.randint(10, (360,))
loader = DataLoader(TensorDataset(images, labels), batch_size=120, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)

for step in run.steps(loader):
    step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
    optimizer.step()
    optimizer.zero_grad()
run.print(f"batch 120 in {run.num_lanes} lanes of {120 // run.num_lanes}")
run.print(f"the last loss, to the bit: {float(step.loss).hex()}")
