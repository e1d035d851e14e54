"""In which pieces tensors go through shared memory, and from where on past the caches, changes no bit, and rank 0 decides for all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import samebits.torch_backend  # noqa: F401 - which names it
from samebits.rank.transport.local import native, rendezvous
from samebits.rank.transport.local.native import compiled
from samebits.testing.ranks import Started, run_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.skipif(not native.available(), reason="needs the compiled part")]

KIB, MOST = 1 << 10, (1 << 32) - 1
CHOICES = [
    {},
    {"swapped_bytes": 256 * KIB, "streamed_from_bytes": 4 << 20},
    {"swapped_bytes": 64 * KIB, "moved_bytes": 256 * KIB, "piece_bytes": 1 << 20},
    {"swapped_bytes": 4 * KIB, "moved_bytes": 4 * KIB, "piece_bytes": 128 * KIB, "whole_bytes": 0},
    {"swapped_bytes": 196 * KIB + 1, "moved_bytes": 36 * KIB + 1, "piece_bytes": 300 * KIB + 1},
    {"swapped_bytes": 0, "moved_bytes": 0, "piece_bytes": 0, "streamed_from_bytes": 0},
    {
        "swapped_bytes": MOST,
        "moved_bytes": MOST,
        "piece_bytes": MOST,
        "whole_bytes": MOST,
        "streamed_from_bytes": 1 << 62,
    },
]
"""Each is used by rank 0 once, while the other ranks have been given others of them."""


def exchanged(folder: str) -> list[str]:
    """For each choice of rank 0, a hash of what every kind of exchange leaves on this rank."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    found = []
    for first in range(len(CHOICES)):
        own = compiled.Tuning(**CHOICES[(first + rank) % len(CHOICES)], is_crowded=bool((first + rank) % 2))
        rendezvous.tuning_of = lambda *_, own=own: own  # type: ignore[assignment]
        dist.init_process_group("samebits", init_method=f"file://{folder}/{first}", rank=rank, world_size=size)
        bits = hashlib.sha256()
        for count in (3, 7_001, 200_003, 1_100_003):
            for result in results(rank, size, count):
                bits.update(result.view(torch.uint8).numpy().tobytes())
        found.append(bits.hexdigest())
        dist.destroy_process_group()
    return found


def results(rank: int, size: int, count: int) -> list[torch.Tensor]:
    torch.manual_seed(rank)
    tensor, half = torch.randn(count), torch.randn(count).bfloat16()
    gathered = [torch.empty(count) for _ in range(size)]
    dist.all_gather(gathered, tensor)
    dealt = [torch.empty(count) for _ in range(size)]
    dist.all_to_all(dealt, [tensor * (to + 1) for to in range(size)])
    part = torch.empty(count)
    dist.reduce_scatter(part, [tensor + to for to in range(size)])
    work = dist.isend(tensor, (rank + 1) % size, tag=count)
    dist.recv(received := torch.empty(count), (rank - 1) % size, tag=count)
    work.wait()
    dist.broadcast(shown := tensor.clone(), size - 1)
    dist.all_reduce(tensor)
    dist.all_reduce(half)
    return [tensor, half, part, received, shown, *gathered, *dealt]


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.thorough), 3])
@pytest.mark.thorough
def test_every_choice_of_pieces_leaves_the_same_bits_whatever_the_other_ranks_were_given(
    tmp_path: Path, ranks: int
) -> None:
    for of_rank in run_ranks(exchanged, Started(ranks), str(tmp_path)):
        assert len(of_rank) == len(CHOICES)
        assert len(set(of_rank)) == 1, of_rank
