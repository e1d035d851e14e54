"""A sampler whose weights follow the losses: in the middle of an epoch a resumed start has the order that was drawn for it."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset, WeightedRandomSampler

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
SIZE = 96


class Hard(Sampler):
    def __init__(self):
        self.weights = torch.ones(SIZE)

    def __len__(self):
        return SIZE

    def __iter__(self):
        return iter(torch.multinomial(self.weights, SIZE, replacement=True).tolist())

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]


class FromState(Hard):
    def __init__(self, state):
        self.state = state
        state.weights = torch.ones(SIZE)

    weights = property(lambda self: self.state.weights)


class Batches(Hard):
    """Batches of its own."""

    def __len__(self):
        return SIZE // 32

    def __iter__(self):
        return iter(torch.multinomial(self.weights, SIZE, replacement=True).reshape(-1, 32).tolist())


def train(place, how, stop_after=None):
    os.chdir(place)
    run = samebits.init(seed=3, lanes=4, threads=1, name="exp1", save_every="1steps")
    model = scenarios.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = zip(*[scenarios.digits(SIZE)[each] for each in range(SIZE)], strict=True)
    data = TensorDataset(torch.stack([*map(torch.as_tensor, inputs)]), torch.tensor(labels), torch.arange(SIZE))
    if how == "in run.state":
        sampler = FromState(run.state)
    elif how == "torch's":
        sampler = WeightedRandomSampler(torch.ones(SIZE), SIZE)
        run.state.weights = torch.ones(SIZE)
    else:
        sampler = Batches() if how == "tracked batches" else Hard()
        run.track(sampler=sampler)
    order = {"batch_sampler": sampler} if how == "tracked batches" else {"batch_size": 32, "sampler": sampler}
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, **order))
    ids = []
    for _ in run.epochs(3):
        if how == "torch's":
            sampler.weights = run.state.weights.double()
        for step in run.steps(loader):
            if stop_after is not None and step.number > stop_after:
                return None
            found = []
            for x, y, index in step:
                loss = F.cross_entropy(model(x), y, reduction="none")
                run.backward(loss.mean())
                found.append(torch.zeros(SIZE).index_put_((index,), loss.detach()))
            new = run.lane_sum(found)
            ids.append(int((new > 0).sum()))
            before = run.state.weights if how in {"in run.state", "torch's"} else sampler.weights
            weights = torch.where(new > 0, new + 1e-3, before)
            if how in {"in run.state", "torch's"}:
                run.state.weights = weights
            else:
                sampler.weights = weights
            optimizer.step()
            optimizer.zero_grad()
    return digest_of(model), ids[-1]


@promise(
    "save-and-resume",
    "A sampler or buffer that a state holds goes on with the same samples, in the middle of an epoch too",
)
@pytest.mark.parametrize(
    "how",
    [
        pytest.param("tracked", marks=pytest.mark.thorough),
        "in run.state",
        pytest.param("torch's", marks=pytest.mark.thorough),
        pytest.param("tracked batches", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.thorough
def test_a_run_resumes_with_the_samples_of_a_sampler_whose_weights_a_state_holds(tmp_path, how):
    for name in ("straight", "stopped"):
        (tmp_path / name).mkdir()
    expected = run_ranks(train, Started(1), str(tmp_path / "straight"), how)
    for after in (4, 5):
        run_ranks(train, Started(2), str(tmp_path / "stopped"), how, after)
    assert run_ranks(train, Started(2), str(tmp_path / "stopped"), how) == expected * 2
