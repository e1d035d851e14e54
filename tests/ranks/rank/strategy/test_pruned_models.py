"""Pruning renames parameters: a state that no start could load is refused when it is saved, and one that keeps its names resumes."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


def train(place, named, stop_after=None):
    """Three epochs of three steps; half of the weights go before the second one."""
    os.chdir(place)
    run = samebits.init(seed=3, lanes=4, threads=1, name="exp1", save_every="1steps")
    model = scenarios.mlp()
    layers = [(one, "weight") for one in model.children() if list(one.parameters())]
    if named:
        for layer, name in layers:
            prune.identity(layer, name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(scenarios.digits(96), batch_size=32, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for epoch in run.epochs(3):
        if epoch == 1:
            prune.global_unstructured(layers, prune.L1Unstructured, amount=0.5)
        for step in run.steps(loader):
            if stop_after is not None and step.number > stop_after:
                return None
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
    return digest_of(model), sum(int((layer.weight == 0).sum()) for layer, _ in layers)


@pytest.mark.parametrize("after", [4, 7])
def test_a_model_that_was_made_ready_for_pruning_resumes_with_the_same_masks(tmp_path, after):
    for name in ("straight", "stopped"):
        (tmp_path / name).mkdir()
    expected = run_ranks(train, Started(1), str(tmp_path / "straight"), True)
    run_ranks(train, Started(2), str(tmp_path / "stopped"), True, after)
    assert run_ranks(train, Started(2), str(tmp_path / "stopped"), True) == expected * 2


@promise(
    "save-and-resume", "A state that no start could load, because parameters were renamed, is refused when it is saved"
)
def test_a_state_with_names_that_no_start_has_is_refused_when_it_is_saved(tmp_path):
    with pytest.raises(
        AssertionError, match=r"UsageError: model has .*weight_orig and .*, which it had not when it was"
    ):
        run_ranks(train, Started(1), str(tmp_path), False)
