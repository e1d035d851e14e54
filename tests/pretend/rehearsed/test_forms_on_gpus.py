"""Forms that people give a model or an optimizer on GPUs: the same bits on all ranks, and the form stays."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep.protocol.layout.mesh import Form
from lockstep.rank.strategy.agreement import tensor_hash
from lockstep.testing.ranks import Started, run_ranks

pytestmark = pytest.mark.ranks


def train(options, form):
    """Two epochs of a small CNN. Returns its bits, and whether its weights are still laid out by channels."""
    run = lockstep.init(seed=3, lanes=4)
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten())
    model = nn.Sequential(body, nn.Linear(64, 3)).to(memory_format=form)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
    data = TensorDataset(torch.randn(48, 3, 8, 8), torch.arange(48) % 3)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=16, shuffle=True))
    for _ in run.epochs(2):
        for step in run.steps(loader):
            for images, labels in step:
                run.backward(F.cross_entropy(model(images.to(memory_format=form)), labels))
            optimizer.step()
            optimizer.zero_grad()
    kept = model[0][0].weight.is_contiguous(memory_format=form)
    return tensor_hash(torch.cat([parameter.detach().flatten() for parameter in model.parameters()])), kept


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({"foreach": True}, torch.channels_last),
        pytest.param({"fused": True}, torch.contiguous_format, marks=pytest.mark.thorough),
        pytest.param({"capturable": True}, torch.contiguous_format, marks=pytest.mark.thorough),
        ({"capturable": True, "fused": True}, torch.channels_last),
    ],
    ids=str,
)
def test_a_form_of_an_optimizer_or_of_weights_has_the_bits_of_one_rank(options, form, strategy):
    [alone] = run_ranks(train, Started(1), options, form)
    assert alone[1]
    assert run_ranks(train, Started(3, form=Form(strategy)), options, form) == [alone] * 3
