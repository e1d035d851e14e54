"""A process group without its operations: rank, size, names, timeouts, its end, and works that belong together."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from samebits.machine import torch_private
from samebits.rank.process_group.arguments import CollectiveFailed, CollectiveMisused
from samebits.rank.process_group.exchange import Exchange
from samebits.rank.process_group.operands import Buffers
from samebits.rank.process_group.watched import NAME
from samebits.rank.process_group.work import DONE, Handle, Transfer
from samebits.rank.transport.local.process import RankProcess


class Membership(dist.ProcessGroup):
    """What torch asks of a group besides collectives."""

    def __init__(self, exchange: Exchange, rank: int, size: int, store: Store, known: dict[int, RankProcess]) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the constructor for subclasses is not in the stub
        self.exchange = exchange
        self.known = known
        """The ranks' numbers in the default group."""
        self._rank, self._size, self._store = rank, size, store
        self._group_name, self._group_desc = "", ""
        self._stand_in: dist.ProcessGroup | None = None

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size  # noqa: N815 - asked by torch's C++

    def name(self) -> str:
        return NAME

    getBackendName = _get_backend_name = name  # noqa: N815 - asked by torch's C++

    @property
    def stand_in(self) -> dist.ProcessGroup:
        """A group of C++ without a backend, through which torch's dispatcher gets the calls of this one (`watched`)."""
        if self._stand_in is None:
            self._stand_in = dist.ProcessGroup(self._store, self._rank, self._size)
            self._stand_in._set_group_name(self._group_name)  # type: ignore[arg-type]  # noqa: SLF001 - torch has no public name
            self._stand_in._set_group_desc(self._group_desc)  # noqa: SLF001
        return self._stand_in

    def get_group_store(self) -> Store:
        return self._store

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    def _set_group_desc(self, desc: str) -> None:
        self._group_desc = desc

    def getGroupName(self) -> str:  # noqa: N802 - asked by torch's C++
        return self._group_name

    def getGroupDesc(self) -> str:  # noqa: N802 - asked by torch's C++
        return self._group_desc

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc  # noqa: N815 - called by torch's C++

    @property
    def group_name(self) -> Any:
        return self._group_name

    @property
    def group_desc(self) -> str:
        return self._group_desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:  # noqa: ARG002
        """The group itself: torch asks for the part of one device, to set its timeout (which it refuses with a warning)."""
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:  # noqa: ARG002 - asked by FSDP
        return False

    def split_group(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Refuse: torch's own ends the process for a subclass in Python."""
        raise CollectiveMisused("The backend samebits does not split groups.", "Use dist.new_group for each part.")

    merge_remote_group = split_group

    def set_timeout(self, timeout: dt.timedelta) -> None:
        """Set how long later operations, and those under way, wait for another rank."""
        self.exchange.patience = timeout
        self.exchange.is_impatient = True

    def shutdown(self) -> None:
        """Leave the group: ranks that still wait for this one raise. `dist.destroy_process_group` calls it."""
        self.exchange.close()

    def abort(self) -> None:
        self.exchange.native.abort(f"Rank {self._rank} called abort.")
        self.exchange.close()

    def _start_coalescing(self, device: torch.device) -> None:  # noqa: ARG002
        self.exchange.gathered = []

    def _end_coalescing(self, device: torch.device) -> Any:  # noqa: ARG002
        works, self.exchange.gathered = self.exchange.gathered or [], None
        return self.together(works, is_async=True)

    def together(self, works: Sequence[dist.Work], is_async: bool, buffers: Buffers | None = None) -> dist.Work:
        """One work for several; waits for them unless the caller continues meanwhile.

        Args:
            works: in the order in which their results are copied back.
            is_async: whether the caller continues.
            buffers: what is copied back after them.
        """
        transfers = [work.transfer for work in works if isinstance(work, Handle)]
        if not is_async:
            for transfer in transfers:
                transfer.wait()
            if buffers is not None:
                buffers.copy_back()
            return DONE
        return Handle(Bundle(self.exchange, transfers, buffers or Buffers())) if transfers else DONE


class Bundle(Transfer):
    """Several transfers as one."""

    def __init__(self, exchange: Exchange, transfers: Sequence[Transfer], buffers: Buffers) -> None:
        pendings = [pending for transfer in transfers for pending in transfer.pendings]
        results = [tensor for transfer in transfers for tensor in transfer.results]
        super().__init__(exchange, pendings, buffers, results)
        self._transfers = transfers

    def _finish(self) -> None:
        for transfer in self._transfers:
            transfer.wait()
        super()._finish()


_NO_TIME = dt.timedelta(0)
_MARK = "__samebits_asks_the_group__"


def answer_monitored_barrier() -> None:
    """Have `dist.monitored_barrier` ask groups of this backend, which torch refuses by name; a second call changes nothing."""
    original = torch_private.if_there("monitored_barrier")
    if original is None or hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def ask(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        asked = dist.group.WORLD if group is None else group
        if not isinstance(asked, Membership):
            return original(group, timeout, wait_all_ranks)
        if isinstance(timeout, int | float):
            timeout = dt.timedelta(seconds=timeout)
        return monitored_barrier(asked.exchange, asked.rank(), timeout, wait_all_ranks)

    setattr(ask, _MARK, True)
    for name in ("monitored_barrier", "public_monitored_barrier"):
        torch_private.replace(name, ask)


def monitored_barrier(exchange: Exchange, rank: int, timeout: dt.timedelta | None, wait_all_ranks: bool) -> None:
    """Wait for all ranks of the group.

    Args:
        exchange: the group's.
        timeout: how long; None is the group's.
        wait_all_ranks: whether rank 0 names all ranks that are late, not only the first.

    Raises:
        CollectiveFailed: on every rank that came, when one did not. Rank 0 names those that are late, the others rank 0.
    """
    # A timeout of 0 is a time too.
    patience = exchange.patience if timeout is None else timeout
    operation = exchange.begin_barrier()
    try:
        # `wait` would take 0 for the group's own timeout.
        exchange.wait(operation, max(patience, dt.timedelta(microseconds=1)))
    except CollectiveFailed as error:
        text = _sentence(exchange.native.behind(operation), rank, patience, wait_all_ranks)
        raise CollectiveFailed(f"[Rank {rank}]: {text}\n{error}") from None


def _sentence(late: list[int], rank: int, patience: dt.timedelta, wait_all_ranks: bool) -> str:
    milliseconds = f"{patience.total_seconds() * 1000:.0f} ms"
    if rank != 0:
        return (
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            f"rank 0. Please check rank 0 logs for faulty rank."
        )
    if patience <= _NO_TIME or not late:
        return f"Rank 0 timed out in monitoredBarrier after {milliseconds}."
    if wait_all_ranks:
        return f"Ranks {', '.join(map(str, late))} failed to pass monitoredBarrier in {milliseconds}."
    return f"Rank {late[0]} failed to pass monitoredBarrier in {milliseconds}."
