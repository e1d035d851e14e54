"""torch.distributed's process group over shared memory: every collective that torch knows, for CPU tensors.

A Python subclass of `dist.ProcessGroup` over the compiled transport; docs/design/process-group.md says why. torch's Python
functions call these methods, and torch's C++ (DDP, functional collectives) calls them through its trampolines. A method
returns a `dist.Work`.

Methods are named and called as torch calls them; `opts` is torch's object of options for the operation, which carries
root, reduce op, and whether the caller continues while the exchange is under way.
"""

from __future__ import annotations

import datetime as dt
import functools
import inspect
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import PrefixStore, Store

from samebits.errors import EnvironmentFailure, PeerLost, UsageError
from samebits.machine import torch_private
from samebits.rank.caller import where
from samebits.rank.process_group.arguments import (
    CollectiveFailed,
    CollectiveMisused,
    CollectivePeerLost,
    error_for,
    options,
)
from samebits.rank.process_group.exchange import Exchange
from samebits.rank.process_group.membership import Membership, answer_monitored_barrier, monitored_barrier
from samebits.rank.process_group.movements import Dealing, Movements
from samebits.rank.process_group.reductions import Reductions
from samebits.rank.process_group.watched import NAME, seen
from samebits.rank.process_group.work import uncompiled
from samebits.rank.transport.local.native import compiled
from samebits.rank.transport.local.rendezvous import meet

_BARRIER = c10d.BarrierOptions()
_WORLD = torch_private.if_there("groups")


@uncompiled
class SamebitsProcessGroup(Reductions, Movements, Dealing):
    """A group of ranks on one machine."""

    @seen(0, "barrier")
    def barrier(self, opts: Any = _BARRIER, timeout: Any = None) -> Any:
        return self.exchange.barrier(options(c10d.BarrierOptions, opts, timeout=timeout))

    def monitored_barrier(self, timeout: dt.timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that are late, in Gloo's words; it breaks the group."""
        monitored_barrier(self.exchange, self.rank(), timeout, wait_all_ranks)


def num_exchanges() -> int | None:
    """How many collectives this rank's script and its libraries have begun in the default group.

    Other groups are not counted, nor, under NCCL or Gloo, messages between two ranks. A group with a backend for each kind
    of device (`cpu:gloo,cuda:nccl`) has those of all. None if one of them does not count.
    """
    group = dist.group.WORLD if dist.is_initialized() else None
    if group is None:
        return 0
    return group.exchange.num_begun if isinstance(group, Membership) else _counted_by(group)


def _counted_by(group: Any) -> int | None:
    """How many collectives torch's own back ends of a group have begun; None if one of them does not count."""
    try:
        # torch has no public way to ask.
        backends: list[Any] = [group._get_backend(device) for device in group._device_types]  # noqa: SLF001
        different = {id(backend): backend for backend in backends}.values()
        return sum(int(backend._get_sequence_number_for_group()) for backend in different)  # noqa: SLF001
    except RuntimeError:
        return None


def unwatched_exchanges() -> dict[int, int | None]:
    """The same for each group of torch's own back ends, by identity: nobody is asked before a call of the group itself."""
    return {
        id(group): _counted_by(group) for group in getattr(_WORLD, "pg_map", ()) if not isinstance(group, Membership)
    }


_MARK = "__samebits_agreed__"
_NEAR = 6
"""Frames between torch's public function and the one that makes groups, torch's logging of calls included."""


def agree_on_new_groups() -> None:
    """Put that in front of torch's function that makes every new group; a second call changes nothing."""
    # `new_group`, device meshes and functional collectives all call this function.
    original = torch_private.if_there("make_group")
    if original is not None and not hasattr(original, _MARK):
        torch_private.replace("make_group", _agreed(original))


def _agreed(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def new_group(*args: Any, **kwargs: Any) -> Any:
        callers = _who_enter()
        if isinstance(callers, Membership):
            given = signature.bind(*args, **kwargs).arguments
            ranks = given.get("ranks")
            ranks = _readable(range(callers.size()) if ranks is None else ranks)
            if not given.get("use_local_synchronization"):
                callers.exchange.agree_on_group(ranks if given.get("sort_ranks") is False else sorted(ranks))
        return original(*args, **kwargs)

    setattr(new_group, _MARK, True)
    return new_group


def _who_enter() -> Any:
    """The group whose ranks call: the default one, or the one that `new_subgroups(group=)` cuts, found in its frame."""
    frame = sys._getframe(2)  # noqa: SLF001 - as inspect.currentframe
    for _ in range(_NEAR):
        if (
            frame.f_code.co_name == "new_subgroups"
            and frame.f_globals.get("__name__") == dist.distributed_c10d.__name__
        ):
            return frame.f_locals.get("group") or dist.group.WORLD
        if frame.f_back is None:
            break
        frame = frame.f_back
    return dist.group.WORLD


def _readable(ranks: Iterable[Any]) -> list[int]:
    """The ranks; none if torch will refuse them: whether ranks agree first must not depend on that."""
    try:
        numbers = [operator.index(rank) for rank in ranks]
    except TypeError:
        return []
    return numbers if all(number >= 0 for number in numbers) else []


_withdrawn: list[UsageError] = []
"""Why there are no groups of this backend, once that is known."""


def join(options: Any, backend_options: Any = None) -> SamebitsProcessGroup:  # noqa: ARG001 - torch's signature
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
    store = PrefixStore(f"{NAME}/{_rendezvous_number(options.store, size)}", options.store)
    ranks = list(options.global_ranks_in_group)
    title = f"The group of ranks {ranks}" if ranks else "The default group"
    default = dist.group.WORLD
    known = default.known if isinstance(default, SamebitsProcessGroup) else {}
    try:
        native = meet(store, rank, size, where, timeout, names=ranks, known=known, is_watched=True)
    except compiled.GroupError as error:
        # Another rank gave up before this one was in.
        raise error_for(error.args[0], f"{title}: {error.args[1]}") from None
    except UsageError as error:
        raise CollectiveMisused(error.problem, error.fix) from None
    except PeerLost as error:
        raise CollectivePeerLost(str(error)) from None
    except EnvironmentFailure as error:
        raise CollectiveFailed(str(error)) from None
    exchange = Exchange(native, timeout or dt.timedelta(minutes=30), title)
    return SamebitsProcessGroup(exchange, rank, size, options.store, known)


def _rendezvous_number(store: Store, size: int) -> int:
    """How often these ranks have met over this store: stores outlive groups, and old addresses must not be read again."""
    arrived: int = store.add(f"{NAME}/arrivals", 1)
    return (arrived - 1) // size


def register() -> None:
    """Register the name with torch.distributed; a second call changes nothing."""
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, join, extended_api=True, devices=["cpu"])
    agree_on_new_groups()
    answer_monitored_barrier()
    # torch's flight recorder uses a part that a group in Python lacks; our own errors name every rank's line.
    if (recorded_elsewhere := torch_private.if_there("recorded_elsewhere")) is not None:
        recorded_elsewhere.add(NAME)


def withdraw(why: UsageError) -> None:
    """Refuse groups of this backend from now on, and say why."""
    _withdrawn.append(why)
