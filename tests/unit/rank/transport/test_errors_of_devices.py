"""What a rank is told when an exchange of tensors on GPUs fails: the device's own error, or that a rank is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from samebits.errors import PeerLost
from samebits.protocol.layout.placement import place
from samebits.rank.transport import gpu_ranks
from samebits.rank.transport.alone import AloneTransport
from samebits.rank.transport.gpu_ranks import GpuTransport


class Failing:
    """A communicator whose work surfaces an error."""

    def __init__(self) -> None:
        self.error: Exception = RuntimeError("nothing")
        self.was_aborted = False

    def begin(self, *_: object) -> Failing:
        return self

    all_gather = add_up = broadcast = begin

    def wait(self) -> None:
        raise self.error

    def connect(self) -> None:
        pass

    def abort(self) -> None:
        self.was_aborted = True


def gathers(transport: GpuTransport, data: Tensor) -> None:
    transport.all_gather(data)


def broadcasts(transport: GpuTransport, data: Tensor) -> None:
    transport.broadcast(data, 0)


def sums(transport: GpuTransport, data: Tensor) -> None:
    transport.all_reduce([data], place(1, 1), data)


Exchange = Callable[[GpuTransport, Tensor], None]
EXCHANGES = pytest.mark.parametrize("exchange", [gathers, broadcasts, sums])


@pytest.fixture
def communicator() -> Failing:
    return Failing()


@pytest.fixture(params=[True, False])
def transport(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, communicator: Failing
) -> Iterator[GpuTransport]:
    monkeypatch.setattr(gpu_ranks, "Nccl", lambda *_: communicator)
    made = GpuTransport(AloneTransport(), dist.HashStore(), exact=request.param)
    yield made
    made.lose(PeerLost("the end of the test"))


@EXCHANGES
@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: device-side assert triggered"),
        torch.OutOfMemoryError("CUDA out of memory."),
        dist.DistBackendError("NCCL error in: x.cpp:1, invalid usage\nLast error:\nDuplicate GPU detected"),
    ],
)
def test_an_error_of_this_ranks_device_is_raised_as_it_is(
    transport: GpuTransport, communicator: Failing, exchange: Exchange, error: Exception
) -> None:
    communicator.error = error
    with pytest.raises(type(error), match=str(error)[:20]) as told:
        exchange(transport, torch.empty(1, device="meta"))
    assert told.value is error
    assert not communicator.was_aborted


@EXCHANGES
def test_the_end_of_another_rank_is_told_with_the_words_of_nccl(
    transport: GpuTransport, communicator: Failing, exchange: Exchange
) -> None:
    communicator.error = dist.DistBackendError("NCCL error in: x.cpp:1, remote process exited\nncclRemoteError")
    with pytest.raises(PeerLost, match=r"left in the middle of an exchange \(NCCL error in: x.cpp:1, remote process"):
        exchange(transport, torch.empty(1, device="meta"))
    assert communicator.was_aborted, "its device may still wait for others"
