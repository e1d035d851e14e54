"""A process group without its operations: rank, size, names, timeouts, its end, and works that belong together."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from lockstep.transport.buffers import Buffers
from lockstep.transport.collective_errors import CollectiveMisused
from lockstep.transport.exchange import DONE, Exchange
from lockstep.transport.place import Place
from lockstep.transport.work import Finished, Transfer

NAME = "lockstep"


class Membership(dist.ProcessGroup):
    """What torch asks of a group besides collectives."""

    def __init__(self, exchange: Exchange, rank: int, size: int, store: Store, known: dict[int, Place]) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the constructor for subclasses is not in the stub
        self.exchange = exchange
        self.known = known
        """Which processes the ranks are, by their numbers in the default group."""
        self._rank, self._size, self._store = rank, size, store
        self._group_name, self._group_desc = "", ""

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size  # noqa: N815 - asked by torch's C++

    def name(self) -> str:
        return NAME

    getBackendName = _get_backend_name = name  # noqa: N815 - asked by torch's C++

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
        """Refuse: torch's own for a subclass in Python ends the process."""
        raise CollectiveMisused("The back end lockstep does not split groups. Use dist.new_group for each part.")

    merge_remote_group = split_group

    def set_timeout(self, timeout: dt.timedelta) -> None:
        """How long later operations wait for another rank."""
        self.exchange.patience = timeout
        self.exchange.is_impatient = True

    def shutdown(self) -> None:
        """Leave: ranks that still wait for this one raise. `dist.destroy_process_group` calls it."""
        self.exchange.close()

    def abort(self) -> None:
        """Break the group for every rank."""
        self.exchange.native.abort(f"Rank {self._rank} called abort.")
        self.exchange.close()

    def _start_coalescing(self, device: torch.device) -> None:  # noqa: ARG002
        self.exchange.gathered = []

    def _end_coalescing(self, device: torch.device) -> Any:  # noqa: ARG002
        works, self.exchange.gathered = self.exchange.gathered or [], None
        return self.together(works, is_async=True)

    def together(self, works: Sequence[dist.Work], is_async: bool) -> dist.Work:
        """One work for several; waits for them when the caller does not go on meanwhile."""
        transfers = [work for work in works if isinstance(work, Transfer)]
        if not is_async:
            for work in transfers:
                work.wait()
            return DONE
        if not transfers:
            return Finished()
        return transfers[0] if len(transfers) == 1 else Bundle(self.exchange, transfers)


class Bundle(Transfer):
    """Several works as one."""

    def __init__(self, exchange: Exchange, works: Sequence[Transfer]) -> None:
        pendings = [pending for work in works for pending in work.pendings]
        results = [tensor for work in works for tensor in work.result()]
        super().__init__(exchange, pendings, Buffers(), results)
        self._works = works

    def _finish(self) -> None:
        for work in self._works:
            work.wait()
        super()._finish()
