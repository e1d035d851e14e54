"""`monitored_barrier`: a barrier that says which ranks did not come, in Gloo's words, which callers look for."""

from __future__ import annotations

import datetime as dt
import functools
from typing import Any

import torch.distributed as dist

from lockstep.machine import torch_private
from lockstep.rank.process_group.errors import CollectiveFailed
from lockstep.rank.process_group.exchange import Exchange
from lockstep.rank.process_group.membership import Membership

_NO_TIME = dt.timedelta(0)
_MARK = "__lockstep_asks_the_group__"


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
        rank: this one in the group.
        timeout: how long; None is the group's.
        wait_all_ranks: whether rank 0 names all ranks that are late, not only the first.

    Raises:
        CollectiveFailed: on every rank that came, when one did not. Rank 0 names those that are late, the others rank 0.
    """
    patience = exchange.patience if timeout is None else timeout  # 0 is a time too
    operation = exchange.begin_barrier()
    try:
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
