"""How the ranks of a group come to share one control block, through a store that they already have.

The leader makes the block without a name (memfd) and tells the others its process id and descriptor; they open it
through `/proc`. Where they cannot (other PID namespaces, or `/proc` is closed), the leader makes a file of mode 0600
with a random name in `/dev/shm` and unlinks it as soon as all have mapped it. See docs/design/0010.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch.distributed import DistStoreError

from lockstep.errors import PeerLost, UsageError, WorldError
from lockstep.journal.waiting_note import noted_at, waits
from lockstep.node.native import compiled, why_not
from lockstep.node.process import RankProcess, objection
from lockstep.node.sites import judge, sites
from lockstep.node.tuning import costs_to_tell, tuning_of

PATIENCE = dt.timedelta(days=7)
"""How long an exchange may take. Finding out which rank is late is the launcher's job, not a timeout's."""

WITHOUT_IT = "Install g++ and lockstep again, or use the backend gloo."

SHORTEST_PAUSE_S, LONGEST_PAUSE_S, LONGER = 0.0005, 0.05, 1.25
"""Between two looks at a store and at the process that should write to it, and so many times as long before the next one. A
store's own wait sees no process, and torch's TCPStore prints a warning whenever it ends without a key."""


class Store(Protocol):
    """What a meeting needs from a torch.distributed store: `get` waits until the key is there."""

    def set(self, key: str, value: str, /) -> None:
        """Write a key."""

    def get(self, key: str, /) -> bytes:
        """Read a key, waiting for it."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys are there."""

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Read several keys that are there."""


def disagreement(name: int, theirs: Sequence[int], mine: Sequence[int]) -> UsageError:
    """The error when rank `name` means a group of different ranks than this one does."""
    return UsageError(
        f"Rank {name} makes a group of ranks {theirs}, but this rank makes one of ranks {mine}.",
        "Call new_group for the same ranks in the same order on every rank.",
    )


def meet(
    store: Store,
    rank: int,
    world_size: int,
    where: Callable[[], str],
    patience: dt.timedelta = PATIENCE,
    *,
    names: Sequence[int] = (),
    known: dict[int, RankProcess] | None = None,
    is_watched: bool = False,
) -> compiled.Group:
    """Make a group. Collective: call it on every rank.

    Args:
        store: shared by these ranks; nothing else uses its keys.
        rank: from 0, in the group.
        world_size: the number of ranks in the group.
        where: returns the calling source line, for errors; called only when something is wrong.
        patience: how long to wait for a rank, here and in every operation.
        names: the numbers by which the user knows these ranks: those of the default group. By default counted from 0.
        known: the processes of those numbers, as far as they are known; those learned here are added.
        is_watched: whether the lines of calls are compared too (sites.py); the same on every rank.

    Raises:
        PeerLost: when a known rank ends.
        UsageError: on every rank, when some are on another machine, or there is no compiled part.
        WorldError: on every rank, when memory cannot be shared.
    """
    if problem := why_not():
        raise UsageError(f"Shared memory between ranks needs the compiled part of lockstep: {problem}.", WITHOUT_IT)
    try:
        compiled.control_bytes(world_size)
    except ValueError as error:
        raise WorldError(f"The ranks cannot share memory: {error}.") from None
    names = list(names) or list(range(world_size))
    known = {} if known is None else known
    here = known[names[rank]] = RankProcess.here(torch.get_num_threads())
    costs = costs_to_tell(rank, world_size)
    store.set(f"place/{rank}", json.dumps([names, vars(here), costs]))
    for name, said in zip(names, _heard_from_all(store, "place", names, known, here), strict=True):
        members, place, told = json.loads(said)
        costs = costs or told
        if members != names:  # before waiting for a rank that may never come
            raise disagreement(name, members, names)
        known[name] = RankProcess(**place)
    places = [known[name] for name in names]
    if mistake := objection(places):
        raise mistake
    alike = len({place.process_names for place in places}) == 1
    if note := noted_at():
        compiled.note_waits_at(note)
    problems = []
    for named in (False, True) if alike else (True,):
        control, problem = _share(store, rank, names, known, named=named)
        if control is not None:
            watch = (sites(), judge) if is_watched else (None, None)
            how = patience.total_seconds(), tuning_of(known.values(), here, costs), where
            return compiled.Group.join(control, rank, world_size, *how, named, names, *watch)
        problems.append(problem)
    raise WorldError(f"The ranks cannot share memory: {'; '.join(dict.fromkeys(problems))}.")


def _share(
    store: Store, rank: int, names: Sequence[int], known: Mapping[int, RankProcess], *, named: bool
) -> tuple[compiled.Memory | None, str]:
    """Return the control block, mapped by every rank; or why one of them could not, the same on all."""
    key = "named" if named else "nameless"
    control, name, told, here = None, "", {"path": "", "problem": ""}, known[names[rank]]
    try:
        if rank == 0:
            num_bytes = compiled.control_bytes(len(names))
            if named:
                name = compiled.random_name()
                control = compiled.Memory.create_named(name, num_bytes, reserve=True)
                told["path"] = f"/dev/shm/{name}"  # noqa: S108 - mode 0600, a random name, gone at once
            else:
                control = compiled.Memory.create(num_bytes, reserve=False)
                told["path"] = f"/proc/{os.getpid()}/fd/{control.descriptor}"
        else:
            offer = json.loads(_heard(store, f"{key}/0", names[0], known, here))
            told["problem"] = offer["problem"]
            control = None if offer["problem"] else compiled.Memory.open(offer["path"])
        if control is not None:
            compiled.Group.announce(control, rank, len(names))
    except OSError as error:
        told["problem"] = error.strerror or str(error)
    try:
        store.set(f"{key}/{rank}", json.dumps(told))
        everyone: list[Mapping[str, str]] = [*map(json.loads, _heard_from_all(store, key, names, known, here))]
    finally:  # also when a rank does not come
        if name:
            compiled.unlink_name(name)
    failed = [f"rank {peer}: {each['problem']}" for peer, each in zip(names, everyone, strict=True) if each["problem"]]
    return (None, failed[0]) if failed else (control, "")


def _heard_from_all(
    store: Store, key: str, names: Sequence[int], known: Mapping[int, RankProcess], here: RankProcess
) -> Iterator[bytes]:
    """What each rank tells, in their order; raises as `_heard` does. What is there already is read at once: asking for each
    key alone takes several times as long, and all ranks ask for those of all.
    """
    keys = [f"{key}/{peer}" for peer in range(len(names))]
    for peer, name in enumerate(names):
        if there := _read_together(store, keys[peer:]):
            yield from there
            return
        yield _heard(store, keys[peer], name, known, here)


def _read_together(store: Store, keys: list[str]) -> list[bytes]:
    """What is at these keys; nothing as long as one is missing, or if the store fails, which `_heard` puts into words."""
    try:
        return store.multi_get(keys) if store.check(keys) else []
    except RuntimeError:
        return []


def _heard(store: Store, key: str, name: int, known: Mapping[int, RankProcess], here: RankProcess) -> bytes:
    """Return what rank `name` tells.

    Raises:
        PeerLost: when it has ended without telling it.
        WorldError: when it is late; torch's own error would only name a key.
    """
    try:
        with waits(f"the meeting of a group with rank {name}", [name]):
            if name in known and known[name].process != here.process:
                _await(store, key, name, known[name], here)
            return store.get(key)
    except RuntimeError as error:
        raise WorldError(
            f"Rank {name} never joined the group: {str(error).partition(chr(10))[0]}. "
            f"Does every rank call init_process_group, and new_group for the same ranks in the same order?"
        ) from error


def _await(store: Store, key: str, name: int, place: RankProcess, here: RankProcess) -> None:
    """Wait until the key is there."""
    patience_s: float = store.timeout.total_seconds()  # type: ignore[attr-defined]  # not in torch's stub
    pause_s, deadline = SHORTEST_PAUSE_S, time.monotonic() + patience_s
    while not store.check([key]):
        if time.monotonic() > deadline:
            raise DistStoreError(f"nothing after {patience_s:g} s")
        if place.has_ended(here) and not store.check([key]):  # it may have written the key just before it ended
            raise PeerLost(
                f"Rank {name} ended while this rank was waiting for it to make the group. "
                f"If rank {name} failed, its own error says why.",
                is_dead=True,
            )
        time.sleep(pause_s)
        pause_s = min(LONGER * pause_s, LONGEST_PAUSE_S)
