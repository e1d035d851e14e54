"""A rank that waits over Gloo for one that dies in the middle of a message ends with a sentence; Gloo itself may forget it."""

import json
import os
from pathlib import Path

import pytest
import torch

from samebits.errors import PeerLost
from samebits.protocol.layout.placement import place
from samebits.rank.run import start
from samebits.rank.transport.torch_group import GroupTransport
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.support.launching import until
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SIZE = 3_000_000
"""More than a connection takes at once."""


def receives(transport, data):
    for _ in range(2):  # on a loaded machine the first comes whole; nobody sends a second
        transport.receive(data, 1, 0)


def sums(transport, data):
    transport.all_reduce([data], place(2, 2), torch.empty_like(data))


def gathers(transport, data):
    transport.all_gather(data)


def meets(transport, data):
    transport.barrier()


def waits_for_the_dead(folder, exchange):
    """In pairs: the second of each dies with a message half sent, for which the first waits, or in another exchange."""
    rank = int(os.environ["RANK"])
    start.init()
    pairs = [[first, first + 1] for first in range(0, int(os.environ["WORLD_SIZE"]), 2)]
    pair, data = GroupTransport().split(pairs), torch.ones(SIZE)
    pair.barrier()
    if pair.rank == 1:
        until((Path(folder) / f"met-{rank - 1}").exists, "the end of the other one's barrier")
        pair.send(data, 0, 0)
        os._exit(9)
    (Path(folder) / f"met-{rank}").touch()
    with pytest.raises(PeerLost, match=f"of rank {rank} to rank {rank + 1} ended|to another rank ended") as lost:
        exchange(pair, data)
    with pytest.raises(PeerLost):  # from now on
        pair.barrier()
    pair.close()
    (Path(folder) / f"told-{rank}").write_text(json.dumps(lost.value.is_dead))


@promise(
    "never-stuck-nothing-left-behind",
    "A rank that waits over Gloo, or inside NCCL (pretended GPUs), for one that dies is told; the one "
    "that failed is named with its own error, memory that is used up with what lies there",
    also=[
        "test_under_every_strategy_the_rank_that_failed_is_named",
        "test_memory_that_is_used_up_is_told_with_what_lies_there",
        "test_who_waits_in_nccl_for_a_rank_that_is_killed_is_told",
    ],
)
@pytest.mark.parametrize(
    "exchange", [receives, *(pytest.param(each, marks=pytest.mark.thorough) for each in (sums, gathers, meets))]
)
def test_who_waits_over_gloo_for_a_rank_that_dies_is_told(exchange, tmp_path):
    ranks = 8
    with pytest.raises(RankFailed, match="failed"):
        run_ranks(waits_for_the_dead, Started(ranks), str(tmp_path), exchange)
    for rank in range(0, ranks, 2):
        assert json.loads((tmp_path / f"told-{rank}").read_text()) is True, "somebody died"


def leaves_early(folder):
    rank = int(os.environ["RANK"])
    start.init()
    transport = GroupTransport()
    transport.barrier()
    if rank == 0:
        transport.close()
        return
    for _ in range(3):  # the others go on among themselves
        sent = transport.send(torch.zeros(1), 3 - rank, 0)
        transport.receive(torch.zeros(1), 3 - rank, 0)
        sent.wait()
    # Who is told first ends its connections, and with them a message that the other has not read yet.
    (Path(folder) / f"exchanged-{rank}").touch()
    until((Path(folder) / f"exchanged-{3 - rank}").exists, "the end of the other one's exchanges")
    with pytest.raises(PeerLost) as lost:
        transport.barrier()
    (Path(folder) / f"told-{rank}").write_text(json.dumps(lost.value.is_dead))


def test_who_waits_over_gloo_for_a_rank_that_left_is_told_too(tmp_path):
    run_ranks(leaves_early, Started(3), str(tmp_path))
    assert all((tmp_path / f"told-{rank}").exists() for rank in (1, 2))
