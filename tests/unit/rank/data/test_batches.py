"""Batches on their way to a GPU: who waits for whom, and what may be fetched early."""

from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader

from samebits.rank.data.device_copies import CopyStream, pinned, tensors_in
from samebits.rank.data.loader import Batches, CopiedBatches, LoaderContext, PreparedLoader
from samebits.rank.init.random_streams import seed_process
from tests.support.promises import promise

CPU, META = torch.device("cpu"), torch.device("meta")


class Pair(NamedTuple):
    left: torch.Tensor
    right: str


@dataclass
class Sample:
    image: torch.Tensor
    name: str


class MovesItself:
    def to(self, device):
        return SimpleNamespace(device=device)


class Diary:
    """Streams that write down what is asked of them, in order. The tests in tests/cuda use torch's."""

    def __init__(self):
        self.entries = []
        self.present = "compute"

    def Stream(self):  # noqa: N802 - torch's name
        return SimpleNamespace(name="copying", record_event=lambda: self.write("record") or len(self.entries))

    def current_stream(self):
        return SimpleNamespace(wait_event=lambda event: self.write(f"wait {event}"))

    @contextmanager
    def stream(self, stream):
        before, self.present = self.present, stream.name
        yield
        self.present = before

    def write(self, what):
        self.entries.append(f"{self.present}: {what}")


def fetched(diary, count):
    for number in range(count):
        diary.write(f"fetch {number}")
        yield {"image": torch.full((2,), float(number)), "label": [number]}


def test_the_compute_stream_waits_for_the_copy_and_for_nothing_else():
    diary = Diary()
    batches = CopiedBatches(fetched(diary, 2), CopyStream(META, diary), ahead=True)
    assert next(batches)["image"].device == META
    diary.write("lane 0")
    batches.look_ahead()
    diary.write("between lanes")
    assert next(batches)["label"] == [1]
    diary.write("lane 1")
    assert diary.entries == [
        *("compute: fetch 0", "copying: record", "compute: wait 2", "compute: lane 0"),
        *("compute: fetch 1", "copying: record", "compute: between lanes", "compute: wait 6", "compute: lane 1"),
    ]


@promise(
    "samples",
    "Batches that are fetched ahead come in the same order, and without loader workers none are",
    also=["test_without_loader_workers_nothing_is_fetched_early"],
)
def test_looking_ahead_changes_neither_order_nor_end():
    for looks in (0, 1, 2):
        batches = CopiedBatches(fetched(Diary(), 3), CopyStream(CPU), ahead=True)
        seen = []
        for batch in batches:
            seen.append(batch["label"][0])
            for _ in range(looks):
                batches.look_ahead()
        assert seen == [0, 1, 2]


def test_without_loader_workers_nothing_is_fetched_early():
    diary = Diary()
    batches = CopiedBatches(fetched(diary, 2), CopyStream(META, diary), ahead=False)
    next(batches)
    before = list(diary.entries)
    batches.look_ahead()
    assert diary.entries == before


def test_what_a_data_set_raises_is_told_when_its_batch_is_asked_for():
    def failing():
        yield torch.zeros(1)
        raise KeyError("sample 7")

    batches = CopiedBatches(failing(), CopyStream(CPU), ahead=True)
    next(batches)
    batches.look_ahead()
    with pytest.raises(KeyError, match="sample 7"):
        next(batches)


def test_a_batch_that_moves_itself_goes_over_the_compute_stream():
    diary = Diary()
    batches = CopiedBatches(iter([(torch.zeros(1), MovesItself())]), CopyStream(META, diary), ahead=True)
    tensor, other = next(batches)
    assert tensor.device == other.device == META
    assert diary.entries == []


def test_every_tensor_of_a_batch_is_found():
    tensors = [torch.full((1,), float(number)) for number in range(5)]
    batch = {"a": [tensors[0], Pair(tensors[1], "text")], "b": Sample(tensors[2], "x"), "c": (tensors[3], 7), "d": None}
    found = tensors_in([batch, tensors[4]])
    assert [float(tensor) for tensor in found] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert tensors_in([batch, MovesItself()]) is None


def test_ranks_on_the_cpu_get_the_loaders_own_batches():
    loader = PreparedLoader(
        DataLoader(torch.arange(8.0), batch_size=4), LoaderContext(0, 0, range(1), 1, seed_process), lambda _: iter(())
    )
    batches = loader.fetch(
        [part for step in loader.cut(loader.plan_training(), 1) for part in step.parts], evaluation=False
    )
    assert type(batches) is Batches
    batches.look_ahead()
    assert [batch.tolist() for batch in batches] == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]
    inner, _ = loader._inner_loader("training")
    assert not inner.pin_memory


class Held:
    """A batch of the user's own that holds something on a device."""

    def pin_memory(self):
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")


def test_what_cannot_be_locked_stays_as_it_is():
    batch = {"sparse": torch.eye(2).to_sparse(), "there": [torch.ones(2, device="meta")], "own": Held(), "name": "one"}
    locked = pinned(batch)
    assert locked["sparse"] is batch["sparse"]
    assert locked["there"][0] is batch["there"][0]
    assert locked["own"] is batch["own"]
    assert locked["name"] == "one"
