"""Models that people train, at their real widths, with endless made data: what a step beside the bare loop is timed on."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

STEPS_AN_EPOCH = 256
STORED = 8
"""Batches of samples that are kept; an epoch shows them again and again."""


def whole(batch):
    """The `collate_fn` of `Made`."""
    return batch


class Made(Dataset):
    """`STEPS_AN_EPOCH` batches out of `STORED` stored ones, each fetched as a whole, so that a step is timed and no loader.

    Args:
        inputs: (STORED * batch, ...).
        labels: (STORED * batch, ...).
    """

    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels

    def __len__(self):
        return len(self.inputs) // STORED * STEPS_AN_EPOCH

    def __getitem__(self, index):
        return self.__getitems__([index])

    def __getitems__(self, indices):
        at = torch.tensor(indices) % len(self.inputs)
        return self.inputs[at], self.labels[at]


def mlp(quick):
    """1024 -> 4096 -> 4096 -> 10; batches of 512."""
    width, batch = (64, 16) if quick else (4096, 512)
    model = nn.Sequential(nn.Linear(1024, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    stored = STORED * batch
    return model, Made(torch.randn(stored, 1024), torch.randint(0, 10, (stored,))), batch


class Bottleneck(nn.Module):
    """He et al. 2015, figure 5, with the stride in the 3 x 3 convolution, as in torchvision."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        is_same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if is_same else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )  # fmt: skip

    def forward(self, pictures):
        return F.relu(self.body(pictures) + self.shortcut(pictures))


class ResNet50(nn.Module):
    """25.6 M parameters; takes (batch, 3, side, side) bytes."""

    def __init__(self, blocks=(3, 4, 6, 3), width=64):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        layers, inputs = [], width
        for number, depth in enumerate(blocks):
            for place in range(depth):
                layers.append(Bottleneck(inputs, width << number, 1 + (number > 0 and place == 0)))
                inputs = 4 * (width << number)
        self.body, self.head = nn.Sequential(*layers), nn.Linear(inputs, 1000)

    def forward(self, pictures):
        hidden = self.body(self.stem(pictures.float() / 255))
        return self.head(hidden.mean((2, 3)))


def resnet50(quick):
    """224 x 224 pictures; batches of 64."""
    model, side, batch = (ResNet50((1, 1), 8), 32, 8) if quick else (ResNet50(), 224, 64)
    stored = STORED * batch
    pictures = torch.randint(0, 256, (stored, 3, side, side), dtype=torch.uint8)
    return model, Made(pictures, torch.randint(0, 1000, (stored,))), batch


class Block(nn.Module):
    """Attention, then a feed-forward network, each on top of what comes in."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden):
        batch, length, _ = hidden.shape
        q, k, v = self.qkv(self.norm1(hidden)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        hidden = hidden + self.dropout(self.out(attended))
        return hidden + self.dropout(self.down(F.gelu(self.up(self.norm2(hidden)))))


class Gpt(nn.Module):
    """GPT-2's smallest: 124 M parameters; the head is the embedding."""

    def __init__(self, width=768, blocks=12, heads=12, words=50257, length=1024):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, text):
        hidden = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return F.linear(self.norm(self.blocks(hidden)), self.words.weight)


def gpt(quick):
    """Batches of 8 texts of 1024 words."""
    words, length, batch = (64, 8, 4) if quick else (50257, 1024, 8)
    model = Gpt(48, 1, 4, words, length) if quick else Gpt()
    text = torch.randint(0, words, (STORED * batch, length))
    return model, Made(text, text.roll(-1, 1)), batch


MODELS = {"mlp": mlp, "resnet50": resnet50, "gpt": gpt}


def loss_of(model, inputs, labels):
    """The mean cross entropy."""
    found = model(inputs)
    return F.cross_entropy(found.flatten(0, -2), labels.flatten())
