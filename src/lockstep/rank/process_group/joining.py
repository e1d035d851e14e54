"""How torch.distributed gets a group of this backend: the ranks meet over the store that torch gives them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from lockstep.errors import PeerLost, UsageError, WorldError
from lockstep.machine import torch_private
from lockstep.rank.caller import where
from lockstep.rank.process_group.errors import CollectiveFailed, CollectiveMisused, CollectivePeerLost, error_for
from lockstep.rank.process_group.exchange import Exchange
from lockstep.rank.process_group.group import LockstepProcessGroup
from lockstep.rank.process_group.monitored import answer_monitored_barrier
from lockstep.rank.process_group.new_group import agree_on_new_groups
from lockstep.rank.process_group.watched import NAME
from lockstep.rank.transport.local.meeting import meet
from lockstep.rank.transport.local.native import compiled

_withdrawn: list[UsageError] = []
"""Why there are no groups of this backend, once that is known."""


def join(options: Any, backend_options: Any = None) -> LockstepProcessGroup:  # noqa: ARG001 - torch's signature
    """Make this rank's part of a group. Collective: call it on every rank of the group.

    Args:
        options: torch's `_DistributedBackendOptions`: store, rank and size in the group, global ranks, timeout.
        backend_options: `pg_options` of the caller; there are none for this backend.

    Raises:
        CollectiveMisused: on every rank, when some are on another machine, there is no compiled part, or the backend
            does not fit this torch.
        CollectivePeerLost: when a rank of the default group has ended and does not come.
        CollectiveFailed: on every rank, when memory cannot be shared.
    """
    if _withdrawn:
        raise CollectiveMisused(_withdrawn[0].problem, _withdrawn[0].fix)
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    store = PrefixStore(f"{NAME}/{_meeting_number(options.store, size)}", options.store)
    ranks = list(options.global_ranks_in_group)
    title = f"The group of ranks {ranks}" if ranks else "The default group"
    default = dist.group.WORLD
    known = default.known if isinstance(default, LockstepProcessGroup) else {}
    try:
        native = meet(store, rank, size, where, timeout, names=ranks, known=known, is_watched=True)
    except compiled.GroupError as error:  # another rank gave up before this one was in
        raise error_for(error.args[0], f"{title}: {error.args[1]}") from None
    except UsageError as error:
        raise CollectiveMisused(error.problem, error.fix) from None
    except PeerLost as error:
        raise CollectivePeerLost(str(error)) from None
    except WorldError as error:
        raise CollectiveFailed(str(error)) from None
    exchange = Exchange(native, timeout or dt.timedelta(minutes=30), title)
    return LockstepProcessGroup(exchange, rank, size, options.store, known)


def _meeting_number(store: Store, size: int) -> int:
    """How often these ranks have met over this store: stores outlive groups, and old addresses must not be read again."""
    arrived: int = store.add(f"{NAME}/arrivals", 1)
    return (arrived - 1) // size


def register() -> None:
    """Register the name with torch.distributed; a second call changes nothing."""
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, join, extended_api=True, devices=["cpu"])
    agree_on_new_groups()
    answer_monitored_barrier()
    # torch's flight recorder uses a part that a group in Python lacks; our own errors name every rank's line
    if (recorded_elsewhere := torch_private.if_there("recorded_elsewhere")) is not None:
        recorded_elsewhere.add(NAME)


def withdraw(why: UsageError) -> None:
    """Refuse groups of this backend from now on, and say why."""
    _withdrawn.append(why)
