"""Weights that are NaN cost no finite state, and no start resumes from them unless it is asked to."""

import json
import logging
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.errors import UsageError
from samebits.protocol.environment import OWN
from samebits.protocol.state_files.whole_state import not_finite_in
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios
from tests.support.notices import Heard
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


class Masked(nn.Module):
    """Has buffers that are not finite for good, and one that no state holds."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.register_buffer("mask", torch.tensor([0.0] * 9 + [-float("inf")]))
        self.register_buffer("least", torch.tensor(float("inf")))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, images):
        return self.body(images)


def train(place, bad_from=99, takes_any=False, by_hand="", strategy="ddp"):
    """Nine steps; the loss is NaN from one on.

    Returns the step with which this start began, whether weights are finite at its end, and what was said about states.
    """
    os.chdir(place)
    logging.getLogger("samebits").addHandler(heard := Heard())
    if takes_any:
        os.environ[OWN] = json.dumps({**json.loads(os.environ[OWN]), "resume_nonfinite": True})
    run = samebits.init(seed=3, lanes=4, threads=1, strategy=strategy, name="exp1", save_every="1steps", keep=2)
    model = scenarios.mlp() if strategy == "model_parallel" else Masked()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(scenarios.digits(96), batch_size=32, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    first = None
    for _ in run.epochs(3):
        for step in run.steps(loader):
            first = first or step.number
            factor = float("nan") if step.number >= bad_from else 1.0
            step.backward(lambda batch, factor=factor: factor * F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
    if by_hand:
        run.save_state(by_hand)
    are_finite = all(bool(torch.isfinite(one).all()) for one in model.parameters() if not one.is_meta)
    return first, are_finite, [notice for notice in heard.notices if "not finite" in notice]


def marks(place):
    states = place / "samebits-runs" / "exp1" / "states"
    return {int(path.name.removeprefix("step-")): not_finite_in(path) for path in states.iterdir()}


@promise(
    "save-and-resume",
    "A state whose weights, buffers, tracked modules or optimizer tensors are not finite is marked, never "
    "evicts the newest finite one, and no start resumes from it without `--resume-nonfinite`",
    also=["test_the_newest_finite_state_at_a_url_is_neither_removed_nor_passed_by"],
)
@pytest.mark.parametrize(
    "strategy", ["ddp", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("zero1", "model_parallel"))]
)
def test_a_start_resumes_from_the_newest_finite_state_unless_it_is_asked_to(tmp_path, strategy):
    started = Started(2)
    run_ranks(_train, started, str(tmp_path), {"bad_from": 6, "by_hand": "mine", "strategy": strategy})
    told = marks(tmp_path)
    assert sorted(told) == [5, 8, 9]
    assert not told[5]
    assert told[8] == told[9] == not_finite_in(tmp_path / "mine") != ""
    [any_start, _] = run_ranks(_train, started, str(tmp_path), {"takes_any": True, "strategy": strategy})
    assert any_start[:2] == (None, False)  # all nine steps are done
    [next_start, _] = run_ranks(_train, started, str(tmp_path), {"strategy": strategy})
    first, are_finite, [said] = next_start
    assert (first, are_finite) == (6, True)
    assert "step-00000005" in said
    assert "--resume-nonfinite" in said
    assert set(marks(tmp_path).values()) == {""}, "as good as new"


def test_where_no_state_is_finite_a_start_is_refused(tmp_path):
    run_ranks(_train, Started(1), str(tmp_path), {"bad_from": 1})
    with pytest.raises(AssertionError, match=UsageError.__name__) as refused:
        run_ranks(_train, Started(1), str(tmp_path), {})
    assert "--resume-nonfinite" in str(refused.value)


def _train(place, options):
    return train(place, **options)


def averages(place):
    """One step that leaves NaN in a tracked average alone."""
    os.chdir(place)
    run = samebits.init(seed=3, lanes=2, threads=1)
    model = run.prepare(nn.Linear(2, 2))
    average, masked = nn.Linear(2, 2), Masked()
    run.track(average=average, masked=masked)
    run.save_state("before")
    nn.init.constant_(average.bias, float("nan"))
    run.save_state("after")
    return model is not None


def test_a_tracked_module_counts_but_for_what_was_not_finite_from_the_start(tmp_path):
    run_ranks(averages, Started(1), str(tmp_path))
    assert not_finite_in(tmp_path / "before") == ""
    assert not_finite_in(tmp_path / "after") == "average.bias"
