"""Rows of an evaluation on all ranks, of which some had no sample. "meta" stands for a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.rank.position.tally import gather_rows
from samebits.rank.transport.contract import Transport
from samebits.testing.fake_transport import FakeWorld

CPU, GPU = torch.device("cpu"), torch.device("meta")


def gathered(rows: list[Tensor], device: torch.device) -> list[Tensor]:
    """What each rank gets; samples are dealt in turn."""
    given = [[*range(rank, 100, len(rows))][: len(one)] for rank, one in enumerate(rows)]

    def of(transport: Transport) -> Tensor:
        return gather_rows(rows[transport.rank], given[transport.rank], transport, device, "train.py:1")

    return FakeWorld(len(rows)).run(of)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_rank_without_samples_joins_the_others_on_their_device(device: torch.device) -> None:
    rows = [torch.ones(2, 3, device=device), torch.ones(1, 3, device=device), torch.zeros(0)]
    told = gathered(rows, device)
    assert [(one.device, tuple(one.shape)) for one in told] == [(device, (3, 3))] * 3


def test_ranks_on_gpus_may_gather_rows_that_they_keep_in_host_memory() -> None:
    told = gathered([torch.zeros(0, device=GPU), torch.tensor([1.0]), torch.tensor([2.0])], GPU)
    assert [one.tolist() for one in told] == [[1.0, 2.0]] * 3


def test_rows_on_different_devices_are_refused_on_every_rank() -> None:
    with pytest.raises(UsageError, match="different shapes, dtypes or devices"):
        gathered([torch.ones(1), torch.ones(1, device=GPU)], GPU)
