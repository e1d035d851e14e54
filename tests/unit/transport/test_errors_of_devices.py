"""What a rank is told when an exchange of tensors on GPUs fails: the device's own error, or that a rank is gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from lockstep.errors import PeerLost
from lockstep.transport.backend_order import BackendOrderTransport
from lockstep.transport.torch_group import GroupTransport

ELSEWHERE = torch.empty(1, device="meta")
"""As for NCCL: what was begun is waited for itself."""


class Failing:
    """Work that has begun, and surfaces an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def wait(self) -> None:
        raise self._error


@pytest.fixture(params=[GroupTransport, BackendOrderTransport])
def transport(request: pytest.FixtureRequest) -> Iterator[GroupTransport]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    made = request.param(torch.device("cpu"))
    yield made
    made.close()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: device-side assert triggered"),
        torch.OutOfMemoryError("CUDA out of memory."),
        dist.DistBackendError("NCCL error in: x.cpp:1, invalid usage\nLast error:\nDuplicate GPU detected"),
    ],
)
def test_an_error_of_this_ranks_device_is_raised_as_it_is(transport: GroupTransport, error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)[:20]) as told:
        transport.wait([(Failing(error), None)], "a sum", ELSEWHERE)
    assert told.value is error


def test_the_end_of_another_rank_is_told_with_the_words_of_nccl(transport: GroupTransport) -> None:
    error = dist.DistBackendError("NCCL error in: x.cpp:1, remote process exited\nncclRemoteError")
    with pytest.raises(PeerLost, match=r"left in the middle of an exchange \(NCCL error in: x.cpp:1, remote process"):
        transport.wait([(Failing(error), None)], "a sum", ELSEWHERE)
