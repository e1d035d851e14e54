"""torch.distributed's process group over shared memory: every collective that torch knows, for CPU tensors.

A Python subclass of `dist.ProcessGroup` over the compiled transport; docs/design/0015 tells why. torch's Python
functions call these methods, and torch's C++ (DDP, functional collectives) calls them by way of its trampolines. What a
method returns is a `dist.Work`.

Methods are named and called as torch calls them; `opts` is torch's object of options for the operation, which carries
root, reduce op, and whether the caller goes on while the exchange is under way.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from torch.distributed import distributed_c10d as c10d

from lockstep.transport import exchange as kinds
from lockstep.transport.buffers import Buffers
from lockstep.transport.dealing import Dealing
from lockstep.transport.movements import Movements
from lockstep.transport.reductions import Reductions

_BARRIER = c10d.BarrierOptions()


class LockstepProcessGroup(Reductions, Movements, Dealing):
    """A group of ranks on one machine."""

    def barrier(self, opts: Any = _BARRIER, timeout: Any = None) -> Any:  # type: ignore[override]  # torch declares overloads
        patience = timeout if timeout is not None else opts.timeout
        is_timed = patience.total_seconds() > 0
        buffers = Buffers()
        work = self.exchange.call(kinds.BARRIER, 0, 0, -1, 0, [], [], buffers, [], is_async=opts.asyncOp or is_timed)
        if is_timed and not opts.asyncOp:
            work.wait(patience)
        return work

    def monitored_barrier(self, timeout: dt.timedelta | None = None, wait_all_ranks: bool = False) -> None:  # noqa: ARG002
        """A barrier whose error names a rank that is late, as that of every operation here; it breaks the group.

        `dist.monitored_barrier` refuses every group that is not Gloo's by name before it asks the group.
        """
        patience = timeout or self.exchange.patience
        self.barrier(timeout=patience).wait(patience)
