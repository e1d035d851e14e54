"""A communicator of NCCL's between ranks with a GPU each: what moves bytes on devices, few calls for each exchange.

Torch's class for it, without a group of torch.distributed's around it: nothing here is a name or an entry there that would
have to be taken away, and other ranks need not know of it. What was begun is over for the *device* when `wait` returns: the
host continues, and waits where it reads a result. Only `abort` ends what waits there for a rank that is gone.

NCCL only moves bytes for exact numerics, so its own settings (NCCL_ALGO, NCCL_PROTO, rings or trees) cannot change a bit.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import Store

from samebits.machine.torch_private import AllgatherOptions
from samebits.rank.transport.across import PATIENCE, bytes_of, patient

QUIET = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""A thread of torch's would abort the process where a kernel fails, where a peer is lost, or where the driver is slow: before
Python can say which. Here `wait` raises, and the launcher ends who hangs. (ProcessGroupNCCL.cpp, the watchdog; not run.)"""


class Nccl:
    """Not a collective, but every rank has to make it, and to `connect` it.

    Args:
        store: shared by the ranks; nothing else uses its keys.
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = PATIENCE  # noqa: SLF001 - as torch itself sets it
        self._group: Any = c10d.ProcessGroupNCCL(store, rank, world_size, options)
        self._world_size = world_size

    def connect(self) -> None:
        """Connect the ranks. Collective: call it on every rank."""
        # NCCL would connect at the first exchange, and `abort` does not end that. Now all ranks are here.
        device = torch.device("cuda", torch.cuda.current_device())
        everyone = torch.empty(self._world_size, dtype=torch.uint8, device=device)
        self.all_gather(everyone, torch.zeros(1, dtype=torch.uint8, device=device)).wait()
        torch.cuda.synchronize(device)

    def all_to_all(self, out: Tensor, data: Tensor, arrive: list[int], leave: list[int]) -> Any:
        """Begin to send a part of `data` to each rank and to put theirs into `out`, both in rank order.

        Args:
            out: 1-D and contiguous.
            data: the same.
            arrive: how many elements come from each rank.
            leave: how many go to each.
        """
        return self._group.alltoall_base(out, data, arrive, leave, patient(c10d.AllToAllOptions()))

    def all_gather(self, out: Tensor, data: Tensor) -> Any:
        """Begin to collect equal parts into `out`, in rank order; `data` may be its own place there."""
        return self._group._allgather_base(out, data, patient(AllgatherOptions()))  # noqa: SLF001 - of torch's

    def all_gather_parts(self, parts: list[Tensor], data: Tensor) -> Any:
        """Begin to collect parts of different sizes; torch makes one group of broadcasts of them."""
        return self._group.allgather([parts], [data], patient(AllgatherOptions()))

    def add_up(self, data: Tensor) -> Any:
        """Begin to add `data` over the ranks, in place and in NCCL's order."""
        return self._group.allreduce([data], patient(dist.AllreduceOptions()))

    def broadcast(self, data: Tensor, source: int) -> Any:
        """Begin to overwrite a contiguous tensor with that of rank `source`."""
        options = patient(dist.BroadcastOptions())
        options.rootRank = source
        return self._group.broadcast([bytes_of(data)], options)

    def send(self, data: Tensor, peer: int) -> Any:
        """Begin to send a contiguous tensor; NCCL keeps the order between two ranks, and knows no tags."""
        return self._group.send([bytes_of(data)], peer, 0)

    def receive(self, out: Tensor, peer: int) -> Any:
        """Begin to receive one."""
        return self._group.recv([bytes_of(out)], peer, 0)

    def abort(self) -> None:
        """End everything that is under way, on this rank only. Any thread may call it."""
        self._group.abort()

    def close(self) -> None:
        """Let go of what is held; nothing is under way."""
        self._group.shutdown()
        del self._group


def abort_default_group() -> None:
    """The same for torch's own group, in which SyncBatchNorm exchanges; it may have no devices, or be gone."""
    with suppress(RuntimeError, AttributeError, AssertionError):
        group: Any = dist.group.WORLD
        group._get_backend(torch.device("cuda")).abort()  # noqa: SLF001 - torch's own abort ends all groups of the process
