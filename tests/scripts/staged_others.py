"""Models as other people write them: state in forward, weights with several uses, results of every form."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.scripts.staged_corners import fit
from tests.scripts.staged_models import Attention, following_data, tokens_data


class KeepsState(nn.Module):
    """Counts its calls at both ends, in layers, in a list that layers share, and in a memory of earlier lanes; writes
    into its input."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.shared = 0, [], [0]
        self.memory = torch.zeros(3, 8)
        self.layers = nn.ModuleList(Counts(self.shared) for _ in range(4))
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, batch):
        x = batch["images"][0] if isinstance(batch, dict) else batch
        x = x.sub_(0.5).div_(0.25)
        self.calls += 1
        self.seen.append(round(float(x.sum()), 3))
        x = self.first(x.flatten(1)) * (1 + 0.01 * self.calls + 0.001 * len(self.seen))
        for layer in self.layers:
            x = layer(x)
        self.memory = torch.cat([self.memory[1:], x.detach().mean(0, keepdim=True)])
        x = self.last(x + self.memory.mean(0))
        self.calls += 1
        return x


class Counts(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.shared, self.own, self.layer = shared, 0, nn.Linear(8, 8)

    def forward(self, x):
        self.shared[0] += 1
        self.own += 1
        return torch.tanh(self.layer(x)) * (1 + 0.01 * self.shared[0] + 0.02 * self.own)


def state_in_forward():
    def loss_of(model, batch):
        return F.cross_entropy(model({"images": [batch[0]]}), batch[1])

    model = KeepsState()
    fitted = fit(model, loss_of=loss_of, cut=["layers.2"])
    state = [model.calls, model.seen, model.shared]
    return fitted | {"losses": [*fitted["losses"], *state]}


class Reused(nn.Module):
    """One block called four times, and a table that is used at the start, in the middle and at the end."""

    def __init__(self):
        super().__init__()
        self.table, self.block, self.norm = nn.Embedding(11, 16), Attention(16), nn.LayerNorm(16)

    def forward(self, tokens):
        x = self.table(tokens)
        for number in range(4):
            x = self.block(x)
            if number == 1:
                x = x + F.linear(x, self.table.weight).softmax(-1) @ self.table.weight
        return F.linear(self.norm(x), self.table.weight)


def scores_of_each(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def a_block_that_is_called_several_times():
    return fit(Reused(), following_data, loss_of=scores_of_each, cut=["block:3"])


def tied_weights_in_bfloat16():
    return fit(TiedTwice(), following_data, loss_of=scores_of_each, precision="bf16-mixed")


class TiedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.blocks = nn.Embedding(11, 16), nn.ModuleList(Attention(16) for _ in range(2))

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return F.linear(x, self.table.weight)


class TiedCells(nn.Module):
    """Recurrent layers also keep their weights in a list."""

    def __init__(self):
        super().__init__()
        self.tokens, self.cells, self.middle, self.head = (
            nn.Embedding(11, 8),
            nn.LSTM(8, 8, batch_first=True),
            nn.Linear(8, 8),
            nn.Linear(8, 3),
        )

    def forward(self, tokens):
        x = self.middle(self.cells(self.tokens(tokens))[0])
        return self.head(self.cells(x)[0][:, -1])


def a_recurrent_layer_that_is_called_twice():
    return fit(TiedCells(), tokens_data, cut=["middle"])


class EncoderDecoder(nn.Module):
    """Like T5: one table for three uses; the encoder's result and its first layer's bias go into every later layer."""

    def __init__(self):
        super().__init__()
        self.table, self.positions = nn.Embedding(11, 16), nn.Embedding(6, 1)
        self.encoder, self.decoder = (nn.ModuleList(Attends() for _ in range(2)) for _ in range(2))

    def forward(self, tokens):
        bias = self.positions((torch.arange(6)[:, None] - torch.arange(6)).abs()).squeeze(-1)
        memory = self.table(tokens)
        for layer in self.encoder:
            memory = layer(memory, bias=bias)
        x = self.table(tokens.flip(1))
        for layer in self.decoder:
            x = layer(x, bias=bias, memory=memory)
        return Output(F.linear(x, self.table.weight), memory, (memory.mean(), {"bias": bias}))


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixes, self.dropout = nn.Linear(16, 16), nn.Dropout(0.1)

    def forward(self, x, bias, memory=None):
        mixed = torch.softmax(x @ (x if memory is None else memory).transpose(1, 2) + bias, -1)
        return x + self.dropout(self.mixes(mixed @ (x if memory is None else memory)))


@dataclass
class Output:
    """Like the outputs of transformers."""

    scores: torch.Tensor
    memory: torch.Tensor
    others: tuple


def output_loss(model, batch):
    output = model(batch[0])
    assert type(output) is Output
    penalty = output.others[0].square() + output.others[1]["bias"].square().mean()
    return (
        F.cross_entropy(output.scores.flatten(0, 1), batch[1].flatten()) + 0.1 * penalty + output.memory.square().mean()
    )


def encoder_and_decoder_with_a_dataclass():
    return fit(EncoderDecoder(), following_data, loss_of=output_loss, cut=["decoder.1"])


class OwnResult:
    """A class that nobody knows."""


class ReturnsItsOwn(nn.Module):
    """Its last layers depend on values, so the first stage cannot follow them; alternately a NamedTuple."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.last(torch.tanh(self.first(x.flatten(1))))
        if self.kind == "values":
            return {"logits": x * 2 if float(x.detach().max()) > 0.3 else x, "size": [x.square().mean()]}
        if self.kind == "named":
            return Pair(Pair(x, x), {"same": x})
        result = OwnResult()
        result.logits = x
        return result


class Pair(NamedTuple):
    one: Any
    other: Any


def a_result_of_an_own_class():
    return fit(ReturnsItsOwn("own"), loss_of=lambda model, batch: F.cross_entropy(model(batch[0]).logits, batch[1]))


def a_result_with_names():
    def loss_of(model, batch):
        result = model(batch[0])
        return F.cross_entropy(result.one.other + result.other["same"], batch[1])

    return fit(ReturnsItsOwn("named"), loss_of=loss_of)


def a_forward_that_cannot_be_followed_to_its_end():
    def loss_of(model, batch):
        result = model(batch[0])
        return F.cross_entropy(result["logits"], batch[1]) + result["size"][0]

    return fit(ReturnsItsOwn("values"), loss_of=loss_of)


class Shifts(nn.Module):
    """Keeps nothing of its input for backward."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x + self.shift


class WritesLate(nn.Module):
    """After the cut, in place: what the first stage handed over must not be touched there."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 3), Shifts()

    def forward(self, x):
        x = self.first(x.flatten(1))
        result = self.last(x)
        x.mul_(1.5).add_(1.0)
        x += 1
        return result + x


def writes_behind_the_cut():
    return fit(WritesLate())


MODELS_OF_OTHERS = {
    function.__name__: function
    for function in [
        state_in_forward,
        a_block_that_is_called_several_times,
        tied_weights_in_bfloat16,
        a_recurrent_layer_that_is_called_twice,
        encoder_and_decoder_with_a_dataclass,
        a_result_of_an_own_class,
        a_result_with_names,
        a_forward_that_cannot_be_followed_to_its_end,
        writes_behind_the_cut,
    ]
}
