"""torch.distributed's process group over shared memory: every collective that torch knows, for CPU tensors.

A Python subclass of `dist.ProcessGroup` over the compiled transport; docs/design/0015 says why. torch's Python
functions call these methods, and torch's C++ (DDP, functional collectives) calls them through its trampolines. A method
returns a `dist.Work`.

Methods are named and called as torch calls them; `opts` is torch's object of options for the operation, which carries
root, reduce op, and whether the caller goes on while the exchange is under way.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from torch.distributed import distributed_c10d as c10d

from lockstep.rank.process_group.arguments import options
from lockstep.rank.process_group.dealing import Dealing
from lockstep.rank.process_group.monitored import monitored_barrier
from lockstep.rank.process_group.movements import Movements
from lockstep.rank.process_group.reductions import Reductions
from lockstep.rank.process_group.watched import seen
from lockstep.rank.process_group.work import uncompiled

_BARRIER = c10d.BarrierOptions()


@uncompiled
class LockstepProcessGroup(Reductions, Movements, Dealing):
    """A group of ranks on one machine."""

    @seen(0, "barrier")
    def barrier(self, opts: Any = _BARRIER, timeout: Any = None) -> Any:
        return self.exchange.barrier(options(c10d.BarrierOptions, opts, timeout=timeout))

    def monitored_barrier(self, timeout: dt.timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that are late, in Gloo's words; it breaks the group."""
        monitored_barrier(self.exchange, self.rank(), timeout, wait_all_ranks)
