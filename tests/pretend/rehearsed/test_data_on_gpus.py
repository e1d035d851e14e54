"""Data sets that lie on a GPU, as small ones often do, in part or as a whole: batches are as from a plain loop."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.pretend.ledger import counted
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
SIZE, BATCH = 32, 8


def samples():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(SIZE, 6, generator=generator)
    return inputs, inputs[:, :4].argmax(1)


def pairs(batch):
    """Inputs and labels of any of the forms below."""
    return (batch["sample"]["inputs"], batch["labels"][0]) if isinstance(batch, dict) else batch


class Nested(Dataset):
    """Labels of the device, inputs of the host, names, in a dictionary."""

    def __init__(self, device):
        self.inputs, self.labels = samples()
        self.labels = self.labels.to(device)

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return {"sample": {"inputs": self.inputs[index], "name": f"no. {index}"}, "labels": [self.labels[index]]}


class Stream(IterableDataset):
    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels

    def __iter__(self):
        return zip(self.inputs, self.labels, strict=True)


def host(_device, **how):
    return DataLoader(TensorDataset(*samples()), BATCH, **how)


def on_device(device, **how):
    return DataLoader(TensorDataset(*(one.to(device) for one in samples())), BATCH, **how)


def on_first_device(_device):
    return on_device(torch.device("cuda", 0))


def put_there_by_collate(device):
    def collate(rows):
        return tuple(torch.stack(column).to(device) for column in zip(*rows, strict=True))

    return DataLoader(TensorDataset(*samples()), BATCH, collate_fn=collate)


def mixed(device):
    inputs, labels = samples()
    return DataLoader(TensorDataset(inputs, labels.to(device)), BATCH)


def nested(device):
    return DataLoader(Nested(device), BATCH)


def streamed(device):
    return DataLoader(Stream(*(one.to(device) for one in samples())), BATCH)


def from_workers(_device):
    return host(None, num_workers=1)


def train(loader_on, default="cpu"):
    run = samebits.init(seed=0, lanes=4)
    torch.set_default_device(default)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, loader_on(run.device))
    for _ in run.epochs(2):
        for step in run.steps(loader):
            for batch in step:
                inputs, labels = pairs(batch)
                assert inputs.device == labels.device == run.device
                run.backward(F.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
    tally = run.tally()
    with torch.no_grad():
        for batch in loader:
            inputs, labels = pairs(batch)
            tally.add(loss=F.cross_entropy(model(inputs), labels))
    return digest_of(model), tally.mean()["loss"].hex()


FEW = [on_first_device, nested, streamed]
REST = [on_device, put_there_by_collate, mixed, from_workers]
FORMS = [*FEW, *(pytest.param(one, marks=pytest.mark.thorough) for one in REST)]


@pytest.fixture(scope="module")
def expected():
    return run_ranks(train, Started(1, lanes=4), host)[0]


@promise(
    "never-a-silent-wrong-gradient",
    "Data that lies on the GPU trains as that of the host; `run.prepare` takes a model's memory once; a "
    "model that no GPU holds trains in stages (pretended GPUs)",
    also=[
        "test_prepare_takes_the_memory_of_the_parameters_once",
        "test_a_model_that_no_gpu_holds_trains_in_stages_with_the_bits_of_one_large_gpu",
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_data_that_lies_on_the_device_trains_as_data_of_the_host(form, expected):
    assert run_ranks(train, Started(2, lanes=4), form) == [expected] * 2


def waits_for_copies(loader_on):
    """How often a step waits for its batch to be copied to the device."""
    run = samebits.init(seed=0, lanes=1)
    _, prepared = run.prepare(nn.Linear(6, 4), loader_on(run.device))
    with counted() as counts:
        for step in run.steps(prepared):
            for _ in step:
                break
            break
    return counts["wait: copy to the device"]


def test_batches_are_copied_without_a_wait():
    def how_often(loader_on):
        return run_ranks(waits_for_copies, Started(1, lanes=1), loader_on)[0]

    assert [how_often(host), how_often(from_workers), how_often(on_device)] == [0, 0, 0]
