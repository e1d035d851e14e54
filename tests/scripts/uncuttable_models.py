"""Models that cannot be cut into stages, or not there, and the sentence that each gets; beside `staged_mistakes`."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.scripts.staged_mistakes import MP, head, loop


def one_layer():
    loop(nn.Sequential(*head()))


def more_stages_than_layers():
    loop(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3)))


class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.last = nn.Linear(128, 3)

    def forward(self, x):
        x = x.flatten(1)
        kept = self.first(x)
        return F.linear(torch.cat([self.second(kept + 1), kept], 1), self.last.weight)


def skip_connection():
    loop(Skips())


class Boxes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 8), nn.Linear(8, 3)
        self.inner = Unboxing(self.second)

    def forward(self, x):
        return self.inner(Box(self.first(x.flatten(1))))


class Box:
    def __init__(self, value):
        self.value = value


class Unboxing(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, box):
        return self.layer(box.value * 2.0) + box.value.sum()


def activations_in_an_object():
    loop(Boxes())


def named_layer_that_does_not_exist():
    loop(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)), cut=["9"])


def too_many_named_layers():
    loop(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)), cut=["2", "3"])


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 3)
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    def forward(self, x):
        x = self.first(x.flatten(1))
        return self.last(checkpoint(self.middle, x, use_reentrant=self.training and not hasattr(self, "modern")))


def cut_inside_of_a_checkpoint():
    model = Checkpointed()
    model.modern = True
    loop(model, cut=["middle.1"])


class Warms(nn.Module):
    """Replaces a buffer at the start of `forward` and uses the new one at the end."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return self.last(self.first(x.flatten(1))) * self.calls


def replaced_buffer_on_both_sides():
    loop(Warms())


UNCUTTABLE = {
    cut_inside_of_a_checkpoint: (2, MP, "inside a checkpointed part of the model"),
    replaced_buffer_on_both_sides: (2, MP, "calls is used on both sides"),
    one_layer: (2, MP, "Sequential can be cut nowhere, so it has at most 1 stage, but 2 were requested"),
    more_stages_than_layers: (3, MP, "can be cut only before 2, so it has at most 2 stages, but 3 were requested"),
    skip_connection: (2, MP, "goes around it (a skip connection)"),
    activations_in_an_object: (2, MP, "can be cut nowhere"),
    named_layer_that_does_not_exist: (
        2,
        MP,
        "No stage of Sequential can start at '9': it is not called. Choose one of:",
    ),
    too_many_named_layers: (2, MP, "names 2 layers that begin a stage, but 2 stages need 1"),
}
