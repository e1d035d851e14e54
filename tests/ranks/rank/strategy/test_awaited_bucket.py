"""A rank that waits for long in the exchange of gradients notes in which bucket, with the name of a parameter."""

import os
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from samebits.protocol.journal.ring import JournalReader, make_ring
from samebits.protocol.journal.waiting_note import note_waits, subject
from samebits.protocol.layout.placement import place
from samebits.rank.run import start
from samebits.rank.strategy.replica.lane_gradients import GradientBufferPool, PartialSums
from samebits.rank.strategy.replica.reduction import Reduction
from samebits.rank.transport.torch_group import GroupTransport
from samebits.testing.ranks import Started, run_ranks
from tests.support.launching import until

pytestmark = pytest.mark.ranks

NAMES = ("body.weight", "head.weight")


def comes_late(folder, over_gloo):
    """Rank 1 comes to the exchange once rank 0 has noted that it waits; it returns that note."""
    rank = int(os.environ["RANK"])
    note_waits(Path(folder) / f"{rank}.ring")
    start.init()
    transport = GroupTransport() if over_gloo else start._present[0].components.transport
    placement = place(2, 2)
    parameters = [torch.nn.Parameter(torch.ones(10_000)) for _ in NAMES]
    pool = GradientBufferPool(parameters, transport, 2, bucket_bytes=40_000)
    sums = PartialSums(pool, placement.subtrees(rank), scaled=True)
    sums.add(rank, pool.take(), 1.0)
    reduction = Reduction(transport, placement, pool.buckets, NAMES.__getitem__)
    reduction.begin(sums, {0, 1}, 0, frozenset())
    note = ""
    if rank == 1:
        first = JournalReader(Path(folder) / "0.ring")

        def has_noted():
            nonlocal note
            waiting = first.waiting()
            note = waiting.what if waiting is not None else ""
            return "bucket" in note

        until(has_noted, "the note of rank 0")
    reduction.finish(1.0)
    assert subject.of is None
    return note


@pytest.mark.parametrize("over_gloo", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_bucket_and_its_first_parameter_are_noted(tmp_path, over_gloo):
    for rank in range(2):
        make_ring(tmp_path / f"{rank}.ring", rank)
    note = run_ranks(comes_late, Started(2, lanes=2), str(tmp_path), over_gloo)[1]
    noted = ["(bucket 0, first head.weight, test_awaited_bucket.py:"]
    if over_gloo:  # rank 1's Gloo exchanges what it has begun: it may be done with the first bucket
        noted += ["(bucket 1, first body.weight, test_awaited_bucket.py:"]
    assert any(one in note for one in noted)


def test_a_sum_on_its_way_keeps_no_reduction_but_its_text():
    reduction = Reduction(None, None, [SimpleNamespace(members=[1])], NAMES.__getitem__)
    text, left = reduction._text_of(0), weakref.ref(reduction)
    del reduction
    assert left() is None, "a cycle keeps its buffers until the next garbage collection"
    assert text() == "bucket 0, first head.weight"
