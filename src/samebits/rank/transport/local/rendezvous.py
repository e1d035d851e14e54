"""How the ranks of a group come to share one control block, through a store that they already have."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Protocol

import torch
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore

from samebits.errors import EnvironmentFailure, PeerLost, UsageError
from samebits.protocol.journal.waiting_note import noted_at, waits
from samebits.protocol.records import restored
from samebits.rank.transport.local.native import compiled, why_not
from samebits.rank.transport.local.process import RankProcess, objection
from samebits.rank.transport.local.shared_store import SharedStore
from samebits.rank.transport.local.sites import belong_together, sites
from samebits.rank.transport.local.tuning import tuning_of

SHORTEST_PAUSE_S, LONGEST_PAUSE_S, LONGER = 0.0005, 0.05, 1.25
"""Between two looks at a store and at the process that should write to it, and the factor from one pause to the next. A
store's own wait sees no process, and torch's TCPStore prints a warning whenever it ends without a key.
"""
SLEEP = dt.timedelta(seconds=LONGEST_PAUSE_S)
"""The same where the store wakes who sleeps, as ours does."""


class Store(Protocol):
    """What a rendezvous needs from a torch.distributed store: `get` waits until the key is there."""

    def set(self, key: str, value: str, /) -> None:
        """Write a key."""

    def get(self, key: str, /) -> bytes:
        """Read a key, waiting for it."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys are there."""

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Read several keys that are there."""


class Round:
    """One round, in which each rank reports something once.

    Args:
        store: shared by these ranks.
        key: what its keys begin with; no other round uses it.
        names: the numbers by which the user knows these ranks.
        known: the processes of those numbers, as far as they are known.
        here: this rank's process.
    """

    def __init__(
        self, store: Store, key: str, names: Sequence[int], known: Mapping[int, RankProcess], here: RankProcess
    ) -> None:
        self._store, self._key, self._names, self._known, self._here = store, key, names, known, here
        self._waking, self._is_last = _waking(store), False
        self._pause_s = SHORTEST_PAUSE_S
        self._come: set[str] = set()

    def report(self, rank: int, text: str) -> None:
        """Report something to the others, as `rank` of the group. Call it once."""
        self._store.set(f"{self._key}/{rank}", text)
        if self._waking is None or self._waking.add(f"{self._key}/reported", 1) != len(self._names):
            return
        self._is_last = True
        self._waking.set(f"{self._key}/all", "")

    def from_one(self, rank: int) -> bytes:
        """What this rank reports.

        Raises:
            PeerLost: when it has ended without a report.
            EnvironmentFailure: when it is late; torch's own error would only name a key.
        """
        key = f"{self._key}/{rank}"
        self._doze(key)
        return self._received(rank, key)

    def from_all(self) -> Iterator[bytes]:
        """What each rank reports, in their order; raises as `from_one` does."""
        last_key = f"{self._key}/all"
        if not self._is_last:
            self._doze(last_key)
        keys, num_received = [f"{self._key}/{rank}" for rank in range(len(self._names))], 0
        while num_received < len(keys):
            there = self._those_there(keys[num_received:])
            yield from there
            num_received += len(there)
            if num_received < len(keys):
                yield self._received(num_received, last_key)
                num_received += 1

    def _those_there(self, keys: list[str]) -> list[bytes]:
        """What is at these keys, up to the first that is missing. Nothing if the store fails, which `_received` puts into words."""
        try:
            num_there = len(keys) if self._store.check(keys) else num_before_missing(self._store, keys)
            return self._store.multi_get(keys[:num_there]) if num_there else []
        except RuntimeError:
            return []

    def _received(self, rank: int, wakes: str) -> bytes:
        """What a rank reports; `wakes` is the key for which this one sleeps meanwhile."""
        name, key = self._names[rank], f"{self._key}/{rank}"
        try:
            with waits(f"the meeting of a group with rank {name}", [name]):
                if name in self._known and self._known[name].process != self._here.process:
                    self._await(key, name, wakes)
                return self._store.get(key)
        except RuntimeError as error:
            raise EnvironmentFailure(
                f"Rank {name} never joined the group: {str(error).partition(chr(10))[0]}. "
                f"Does every rank call init_process_group, and new_group for the same ranks in the same order?"
            ) from error

    def _await(self, key: str, name: int, wakes: str) -> None:
        """Wait until the key of a rank whose process is known is there."""
        patience_s: float = self._store.timeout.total_seconds()  # type: ignore[attr-defined]  # not in torch's stub
        deadline = time.monotonic() + patience_s
        while not self._store.check([key]):
            if time.monotonic() > deadline:
                raise DistStoreError(f"nothing after {patience_s:g} s")
            # It may have written the key just before it ended.
            if self._known[name].has_ended(self._here) and not self._store.check([key]):
                raise PeerLost(
                    f"Rank {name} ended while this rank was waiting for it to make the group. "
                    f"If rank {name} failed, its own error says why.",
                    is_dead=True,
                )
            self._pause(wakes)

    def _doze(self, key: str) -> None:
        """A first pause, where the store ends it as soon as the key is there: nearly always that is all there is to wait for."""
        if self._waking is not None:
            with waits("the meeting of a group"):
                self._pause(key)

    def _pause(self, key: str) -> None:
        if self._waking is not None and key not in self._come:
            # A wait that ends without the key is no error: the caller looks again.
            with suppress(RuntimeError):
                self._waking.wait([key], SLEEP)
                # From now on this key wakes no thread, even if ranks that mean a smaller group have written it.
                self._come.add(key)
            return
        time.sleep(self._pause_s)
        # The pause grows with how long this rank has waited in the round, whichever rank was missing.
        self._pause_s = min(LONGER * self._pause_s, LONGEST_PAUSE_S)


def num_before_missing(store: Store, keys: list[str]) -> int:
    """How many keys come before the first that is missing: 1, 2, 4, ... more are requested, and then 4, 2, 1."""
    found, step, is_growing = 0, 1, True
    while step:
        part = keys[found : found + step]
        if part and store.check(part):
            found += len(part)
        else:
            is_growing = False
        step = 2 * step if is_growing else step // 2
    return found


def _waking(store: Store) -> SharedStore | PrefixStore | None:
    """The same store, if those that wait for its keys sleep until these are there; the same on all ranks that share it."""
    below: object = store
    while isinstance(below, PrefixStore):
        below = below.underlying_store
    return store if isinstance(below, SharedStore) and isinstance(store, SharedStore | PrefixStore) else None


PATIENCE = dt.timedelta(days=7)
"""How long an exchange may take. Finding out which rank is late is the launcher's job, not a timeout's."""

WITHOUT_IT = "Install g++ and samebits again, or use the backend gloo."


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
        where: returns the calling source line, for errors; called only when something is wrong.
        patience: how long to wait for a rank, here and in every operation.
        names: the numbers by which the user knows these ranks: those of the default group. By default counted from 0.
        known: the processes of those numbers, as far as they are known; those learned here are added.
        is_watched: whether the lines of calls are compared too (sites.py); the same on every rank.

    Raises:
        PeerLost: when a known rank ends.
        UsageError: on every rank, when some are on another machine, or there is no compiled part.
        EnvironmentFailure: on every rank, when memory cannot be shared.
    """
    if problem := why_not():
        raise UsageError(f"Shared memory between ranks needs the compiled part of samebits: {problem}.", WITHOUT_IT)
    try:
        compiled.control_bytes(world_size)
    except ValueError as error:
        raise EnvironmentFailure(f"The ranks cannot share memory: {error}.") from None
    names = list(names) or list(range(world_size))
    known = {} if known is None else known
    here = known[names[rank]] = RankProcess.here(torch.get_num_threads())
    _exchange_places(store, rank, names, known)
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
            watch = (sites(), belong_together) if is_watched else (None, None)
            how = patience.total_seconds(), tuning_of(known.values(), here), where
            return compiled.Group.join(control, rank, world_size, *how, named, names, *watch)
        problems.append(problem)
    raise EnvironmentFailure(f"The ranks cannot share memory: {'; '.join(dict.fromkeys(problems))}.")


def _exchange_places(store: Store, rank: int, names: Sequence[int], known: dict[int, RankProcess]) -> None:
    """Report this rank's process to the others, add theirs to `known`.

    Raises `UsageError` when a rank means a group of other ranks.
    """
    here = known[names[rank]]
    same = f"[{json.dumps(names)}, "
    this_round = Round(store, "place", names, known, here)
    this_round.report(rank, f"{same}{json.dumps(vars(here))}]")
    for name, report in zip(names, this_round.from_all(), strict=True):
        members, place = _read_place(report, same)
        # [Note: why the members are compared first]
        # A rank that means another group may wait for ranks that never come to this one: the error has to be raised before
        # anything else is exchanged.
        if members is not None and members != names:
            raise disagreement(name, members, names)
        known[name] = place


def _share(
    store: Store, rank: int, names: Sequence[int], known: Mapping[int, RankProcess], *, named: bool
) -> tuple[compiled.Memory | None, str]:
    """Return the control block, mapped by every rank; or why one of them could not, the same on all."""
    this_round = Round(store, "named" if named else "nameless", names, known, known[names[rank]])
    control, name, mine = None, "", {"path": "", "problem": ""}
    try:
        if rank == 0:
            num_bytes = compiled.control_bytes(len(names))
            if named:
                name = compiled.random_name()
                control = compiled.Memory.create_named(name, num_bytes, reserve=True)
                mine["path"] = f"/dev/shm/{name}"  # noqa: S108 - mode 0600, a random name, gone at once
            else:
                control = compiled.Memory.create(num_bytes, reserve=False)
                mine["path"] = f"/proc/{os.getpid()}/fd/{control.descriptor}"
        else:
            offer = json.loads(this_round.from_one(0))
            mine["problem"] = offer["problem"]
            control = None if offer["problem"] else compiled.Memory.open(offer["path"])
        if control is not None:
            compiled.Group.announce(control, rank, len(names))
    except OSError as error:
        mine["problem"] = error.strerror or str(error)
    try:
        this_round.report(rank, json.dumps(mine))
        reports = [*this_round.from_all()]
    finally:
        # A name in /dev/shm outlives its processes, so it goes as soon as every rank has opened it, or one has not come.
        if name:
            compiled.unlink_name(name)
    # Most reports are the same, so each text is parsed once.
    problems = {text: json.loads(text)["problem"] for text in set(reports)}
    failed = [f"rank {peer}: {problems[text]}" for peer, text in zip(names, reports, strict=True) if problems[text]]
    return (None, failed[0]) if failed else (control, "")


def _read_place(report: bytes, same: str) -> tuple[list[int] | None, RankProcess]:
    """The ranks that a rank makes a group of, None when its report begins with `same`; and its process.

    Compared as text: each rank would read n lists of n ranks otherwise.
    """
    text = report.decode()
    if text.startswith(same):
        return None, _read_process(text[len(same) : -1])
    members, place = json.loads(text)
    return members, _read_process(json.dumps(place))


@lru_cache(512)
def _read_process(text: str) -> RankProcess:
    """Parse a process; it is nearly always the one that was parsed when the group before was made."""
    return restored(RankProcess, json.loads(text))
