"""A script that makes another device the default: samebits's own tensors stay where they have to be.

"meta" stands for a GPU: what is made there by mistake has no values, so it cannot be exchanged.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.rank.transport.channel import Channel
from samebits.rank.transport.torch_group import GroupTransport
from samebits.testing.ranks import Started, run_ranks

pytestmark = pytest.mark.ranks

LONG = "x" * 2000
"""Needs a second message."""


def over_gloo():
    samebits.init()
    torch.set_default_device("meta")
    transport = GroupTransport()
    told = transport.all_gather_object(transport.rank, "here")
    channel = Channel(transport, 1, torch.device("cpu"))
    channel.send(1 - transport.rank, LONG, [torch.full((3, 5), 7.0 + transport.rank, device="cpu")])
    words, [came] = channel.receive(1 - transport.rank)
    channel.flush()
    transport.close()
    return told, words, came.mean().item()


def test_ranks_exchange_over_gloo_where_another_device_is_the_default():
    assert run_ranks(over_gloo, Started(2)) == [([0, 1], LONG, 8.0), ([0, 1], LONG, 7.0)]


def trained(default, folder):
    torch.set_default_device("cpu")
    run = samebits.init(seed=0)
    model, samples = nn.Linear(2, 3), TensorDataset(torch.arange(24.0).view(12, 2) / 10, torch.arange(12) % 3)
    torch.set_default_device(default)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loaders = DataLoader(samples, 4, shuffle=True), DataLoader(samples, 4)
    model, optimizer, loader, test = run.prepare(model, optimizer, *loaders)
    with torch.device("cpu"):  # torch's own DataLoader asks its seed for its value
        for step in run.steps(loader):
            for values, labels in step:
                run.backward(F.cross_entropy(model(values), labels))
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            rows = torch.cat([model(values) for values, _ in test])
    gathered = run.gather(rows).tolist()
    run.save_state(f"{folder}/{default}")
    run.load_state(f"{folder}/{default}")
    run.save_weights(model, f"{folder}/{default}.safetensors")
    return gathered, [parameter.tolist() for parameter in model.parameters()]


def by_both_defaults(folder):
    return trained("cpu", folder), trained("meta", folder)


def test_a_run_has_the_same_bits_whatever_device_is_the_default(tmp_path):
    for usual, other in run_ranks(by_both_defaults, Started(2), str(tmp_path)):
        assert other == usual
