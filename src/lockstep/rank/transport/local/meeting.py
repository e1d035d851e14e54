"""How the ranks of a group come to share one control block, through a store that they already have.

The leader makes the block without a name (memfd) and tells the others its process id and descriptor; they open it
through `/proc`. Where they cannot (other PID namespaces, or `/proc` is closed), the leader makes a file of mode 0600
with a random name in `/dev/shm` and unlinks it as soon as all have mapped it. See docs/design/0010.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch

from lockstep.errors import UsageError, WorldError
from lockstep.protocol.journal.waiting_note import noted_at
from lockstep.rank.transport.local.hearing import Hearing, Store
from lockstep.rank.transport.local.native import compiled, why_not
from lockstep.rank.transport.local.process import RankProcess, objection
from lockstep.rank.transport.local.sites import judge, sites
from lockstep.rank.transport.local.tuning import tuning_of

PATIENCE = dt.timedelta(days=7)
"""How long an exchange may take. Finding out which rank is late is the launcher's job, not a timeout's."""

WITHOUT_IT = "Install g++ and lockstep again, or use the backend gloo."


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
    _hear_places(store, rank, names, known)
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
            how = patience.total_seconds(), tuning_of(known.values(), here), where
            return compiled.Group.join(control, rank, world_size, *how, named, names, *watch)
        problems.append(problem)
    raise WorldError(f"The ranks cannot share memory: {'; '.join(dict.fromkeys(problems))}.")


def _hear_places(store: Store, rank: int, names: Sequence[int], known: dict[int, RankProcess]) -> None:
    """Tell the others this rank's process, add theirs to `known`.

    Raises `UsageError` when a rank means a group of other ranks.
    """
    here = known[names[rank]]
    same = f"[{json.dumps(names)}, "
    hearing = Hearing(store, "place", names, known, here)
    hearing.tell(rank, f"{same}{json.dumps(vars(here))}]")
    for name, said in zip(names, hearing.from_all(), strict=True):
        members, place = _read_place(said, same)
        if members is not None and members != names:  # before waiting for a rank that may never come
            raise disagreement(name, members, names)
        known[name] = place


def _share(
    store: Store, rank: int, names: Sequence[int], known: Mapping[int, RankProcess], *, named: bool
) -> tuple[compiled.Memory | None, str]:
    """Return the control block, mapped by every rank; or why one of them could not, the same on all."""
    hearing = Hearing(store, "named" if named else "nameless", names, known, known[names[rank]])
    control, name, told = None, "", {"path": "", "problem": ""}
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
            offer = json.loads(hearing.from_one(0))
            told["problem"] = offer["problem"]
            control = None if offer["problem"] else compiled.Memory.open(offer["path"])
        if control is not None:
            compiled.Group.announce(control, rank, len(names))
    except OSError as error:
        told["problem"] = error.strerror or str(error)
    try:
        hearing.tell(rank, json.dumps(told))
        said = [*hearing.from_all()]
    finally:  # also when a rank does not come
        if name:
            compiled.unlink_name(name)
    problems = {text: json.loads(text)["problem"] for text in set(said)}  # most say the same
    failed = [f"rank {peer}: {problems[text]}" for peer, text in zip(names, said, strict=True) if problems[text]]
    return (None, failed[0]) if failed else (control, "")


def _read_place(said: bytes, same: str) -> tuple[list[int] | None, RankProcess]:
    """The ranks that a rank makes a group of, None when it tells what begins as `same`; and its process.

    Compared as text: each rank would read n lists of n ranks otherwise.
    """
    text = said.decode()
    if text.startswith(same):
        return None, _read_process(text[len(same) : -1])
    members, place = json.loads(text)
    return members, _read_process(json.dumps(place))


@lru_cache(512)
def _read_process(text: str) -> RankProcess:
    """What a rank tells of its process is nearly always what it told when the group before was made."""
    place = json.loads(text)
    return RankProcess(**place | {"cpus": tuple(place["cpus"])})
