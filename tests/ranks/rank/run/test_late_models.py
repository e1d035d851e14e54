"""A head is made in the middle, alone or in a prepared model: the run and every resumed start of it have the same bits."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios

pytestmark = pytest.mark.ranks


class Grower:
    """A model of five classes, which grows to ten in the way that `how` names."""

    def __init__(self, run, how):
        self.run, self.how, self.is_grown = run, how, False
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.1), nn.Linear(16, 5))
        self.model[1].requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.model[3].parameters(), lr=0.1, momentum=0.9)
        self.loader = DataLoader(scenarios.digits(96), batch_size=32, shuffle=True)
        self.model, self.optimizer, self.loader = run.prepare(self.model, self.optimizer, self.loader)
        self.optimizers, self.head = [self.optimizer], None

    def wider(self):
        head, old = nn.Linear(16, 10), self.model[3]
        with torch.no_grad():
            head.weight[:5] = old.weight
        return head

    def grow(self):
        self.is_grown, run, model = True, self.run, self.model
        model[1].requires_grad_(True)
        if self.how == "alone":
            self.head = run.prepare(nn.Linear(5, 10))
            self.optimizers.append(run.prepare(torch.optim.Adam(self.head.parameters(), lr=0.01)))
            return
        if self.how == "unprepared":
            model[3] = self.wider()
            self.optimizers[:] = [run.prepare(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))]
            return
        if self.how in {"group", "early group"}:
            head = nn.Linear(5, 10)
            groups = [{"params": head.parameters(), "lr": 0.02}, {"params": model[1].parameters(), "lr": 0.01}]
            if self.how == "group":
                model.append(run.prepare(head))
            for group in groups:
                self.optimizer.add_param_group(group)
            if self.how == "early group":
                model.append(run.prepare(head))
            return
        model[3] = run.prepare(self.wider())
        self.optimizers[:] = [run.prepare(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))]
        if self.how == "loader":
            self.loader = run.prepare(DataLoader(scenarios.digits(128), batch_size=32, shuffle=True))
        if self.how == "written":
            with torch.no_grad():
                model[3].bias.zero_()

    def loss(self, batch):
        logits = self.model(batch[0])
        logits = logits if self.head is None else self.head(logits)
        return F.cross_entropy(logits, batch[1] % logits.shape[1])


def train(place, how, stop_after=None, at_step=0, once=False, strategy="ddp"):
    """Three epochs of three steps, with random numbers of the script's own in between."""
    os.chdir(place)
    run = samebits.init(seed=3, lanes=4, threads=1, strategy=strategy, name="exp1", save_every="1steps")
    grower, drawn = Grower(run, how), []
    for epoch in run.epochs(3):
        if not at_step and not grower.is_grown and (epoch == 1 if once else epoch >= 1):
            grower.grow()
        shift = torch.rand(())
        for step in run.steps(grower.loader):
            if stop_after is not None and step.number > stop_after:
                return None
            if at_step and not grower.is_grown and step.number >= at_step:
                grower.grow()
            scale = torch.rand(()) + shift
            drawn.append((step.number, float(scale)))
            step.backward(lambda batch, scale=scale: grower.loss(batch) * scale)
            for one in grower.optimizers:
                one.step()
                one.zero_grad()
    groups = [group["lr"] for one in grower.optimizers for group in one.param_groups]
    return digest_of(grower.model), digest_of(grower.head or nn.Identity()), groups, drawn[-2:]


def _train(place, options):
    return train(place, **options)


def places(tmp_path, *names):
    for name in names:
        (tmp_path / name).mkdir()
        yield str(tmp_path / name)


@pytest.mark.parametrize(
    "how",
    [
        {"how": "assigned"},
        pytest.param({"how": "group", "at_step": 5}, marks=pytest.mark.thorough),
        pytest.param({"how": "assigned", "strategy": "zero1"}, marks=pytest.mark.thorough),
        pytest.param({"how": "group", "at_step": 5, "strategy": "zero1"}, marks=pytest.mark.thorough),
        pytest.param({"how": "alone"}, marks=pytest.mark.thorough),
        pytest.param({"how": "alone", "at_step": 5}, marks=pytest.mark.thorough),
        pytest.param({"how": "assigned", "at_step": 5}, marks=pytest.mark.thorough),
        pytest.param({"how": "group"}, marks=pytest.mark.thorough),
        pytest.param({"how": "early group"}, marks=pytest.mark.thorough),
        pytest.param({"how": "early group", "at_step": 5}, marks=pytest.mark.thorough),
        pytest.param({"how": "loader"}, marks=pytest.mark.thorough),
    ],
    ids=str,
)
@pytest.mark.thorough
def test_a_run_whose_model_grows_resumes_with_the_same_bits(tmp_path, how):
    one, four, *stopped = places(tmp_path, "one", "four", "3", "4", "6", "7")
    expected = run_ranks(_train, Started(1), one, {**how, "strategy": "ddp"})
    if how != {"how": "assigned"}:
        assert run_ranks(_train, Started(4), four, how) == expected * 4
    for place in stopped if "at_step" in how or how["how"] == "loader" else stopped[1::2]:
        run_ranks(_train, Started(2), place, {**how, "stop_after": int(place.rpartition("/")[2])})
        assert run_ranks(_train, Started(2), place, how) == expected * 2


def test_a_resumed_start_that_lacks_the_new_head_is_stopped_before_its_first_step(tmp_path):
    run_ranks(_train, Started(1), str(tmp_path), {"how": "group", "once": True, "stop_after": 7})
    with pytest.raises(AssertionError, match="UsageError") as refused:
        run_ranks(_train, Started(1), str(tmp_path), {"how": "group", "once": True})
    assert "model2, a parameter group of optimizer" in str(refused.value)


def test_a_head_that_was_not_prepared_is_refused_by_name_where_it_would_miss_its_values(tmp_path):
    run_ranks(_train, Started(1), str(tmp_path), {"how": "unprepared", "stop_after": 7})
    with pytest.raises(AssertionError, match=r"3\.weight came into its model without run\.prepare"):
        run_ranks(_train, Started(1), str(tmp_path), {"how": "unprepared"})


def test_a_late_model_that_is_written_to_before_its_first_lanes_is_refused(tmp_path):
    with pytest.raises(AssertionError, match="was prepared between steps and written to"):
        run_ranks(_train, Started(1), str(tmp_path), {"how": "written"})
