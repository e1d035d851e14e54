"""A batch in pieces through a model on two devices (note c): with one piece on the second, the next is on the first.

    $ samebits run -n 1 examples/notes/pipelined_network.py
    split_size 20: 6 pieces of 120 samples
    the outputs are those of the undivided batch: True

GPU calls return before they are done, so plain program order is enough to overlap. On a CPU nothing overlaps here.
"""

import torch
from torch import Tensor, nn

on_gpus = torch.cuda.device_count() > 1
FIRST, SECOND = (torch.device("cuda", i) if on_gpus else torch.device("cpu") for i in range(2))


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(inputs + self.body(inputs))


class SplitNetwork(nn.Module):
    """A small residual network: `seq1` on the first device, `seq2` and `fc` on the second."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.seq1 = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), Block(channels)).to(FIRST)
        self.seq2 = nn.Sequential(Block(channels), nn.AdaptiveAvgPool2d(1), nn.Flatten()).to(SECOND)
        self.fc = nn.Linear(channels, 10).to(SECOND)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.seq2(self.seq1(images.to(FIRST)).to(SECOND)))


class PipelinedNetwork(SplitNetwork):
    def __init__(self, split_size: int) -> None:
        super().__init__()
        self.split_size = split_size

    def forward(self, images: Tensor) -> Tensor:
        pieces = iter(images.to(FIRST).split(self.split_size))
        on_second = self.seq1(next(pieces)).to(SECOND)
        outputs = []
        for piece in pieces:
            outputs.append(self.fc(self.seq2(on_second)))  # the second device is busy with this piece ...
            on_second = self.seq1(piece).to(SECOND)  # ... and the first with the next one
        outputs.append(self.fc(self.seq2(on_second)))
        return torch.cat(outputs)


torch.manual_seed(0)
model = PipelinedNetwork(split_size=20).eval()  # in training, BatchNorm would see pieces of 20 and not the batch
images = torch.randn(120, 3, 16, 16)
with torch.no_grad():
    piecewise, whole = model(images), SplitNetwork.forward(model, images)
print(f"split_size 20: {len(images.split(20))} pieces of {len(images)} samples")
print(f"the outputs are those of the undivided batch: {torch.allclose(piecewise, whole, atol=1e-5)}")
