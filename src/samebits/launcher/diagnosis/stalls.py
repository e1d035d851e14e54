"""Whether ranks that wait for others wait too long, and what to say about it.

A rank is suspected when others have waited for it for `SHORTEST_S`, or for `TIMES` times what it usually needs for what it
does. Then it is looked at for a few seconds. It is stalled when it does not move (`movement`), and slow when it does: an
evaluation on one rank, a first step that compiles, a loop. With a limit of the user's own (--stall-after) it is stalled from
there on, whether it moves or not.

On several nodes each launcher follows the waits of all ranks, and judges those of its own node. A circle is judged by the node of
its lowest rank, and while bytes move between its members it is an exchange that takes long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from samebits.launcher.diagnosis.causes import cause
from samebits.launcher.diagnosis.movement import Movement, exchanges, movement
from samebits.launcher.diagnosis.scene import Life, RankScene
from samebits.launcher.diagnosis.stack import Frame
from samebits.launcher.diagnosis.words import awaited_text, phase_text, ranks_text
from samebits.protocol.journal.ring import Phase

SHORTEST_S = 4.7
"""Others wait at least so long before a rank is suspected: the launcher looks four times a second, and names it within 5 s."""
TIMES = 8
STANDSTILL_S = 15.0
"""The shortest time after which ranks are suspected for whom nobody waits."""
PARTS_OF_A_STEP = frozenset({Phase.DATA, Phase.COMPUTE, Phase.EXCHANGE})
"""Not the update: the script may do anything behind it, and take its time."""
LOOK_S = 3.0
"""How long before its limit a rank is looked at."""


# For whom ranks wait in the end: along a chain of waits to a rank that waits for nobody, or around a circle


@dataclass(frozen=True)
class Holdup:
    """Ranks that wait, and those that hold them up."""

    culprits: frozenset[int]
    """The ends of all chains; in a circle its members."""
    waiting: frozenset[int]
    """Those that wait for them, directly or not; in a circle also its members."""
    waited_s: float
    """How long the first of them has waited; a circle, since its last member waits too."""
    is_circle: bool = False


def holdups(scenes: Mapping[int, RankScene]) -> list[Holdup]:
    """Who waits for whom. Ranks that are held up by the same ones come together; the longest wait comes first.

    Args:
        scenes: by rank.
    """
    # Who has ended holds nobody up: its peers get an error of their transport instead.
    alive = frozenset(scene.rank for scene in scenes.values() if scene.life is not Life.ENDED)
    behind = {
        scene.rank: (scene.wait.behind or alive) & alive - {scene.rank}
        for scene in scenes.values()
        if scene.wait is not None and scene.rank in alive
    }
    found: dict[tuple[frozenset[int], bool], set[int]] = {}
    for rank in behind:
        reached = _reached(rank, behind)
        free = frozenset(reached - behind.keys())
        if free or reached:
            found.setdefault((free or _circle(rank, behind), not free), set()).add(rank)
    together = [
        Holdup(culprits, frozenset(waiting), _lasts_s(scenes, culprits, waiting, is_circle=is_circle), is_circle)
        for (culprits, is_circle), waiting in found.items()
    ]
    return sorted(together, key=lambda holdup: (-holdup.waited_s, sorted(holdup.culprits)))


def _lasts_s(
    scenes: Mapping[int, RankScene], culprits: Collection[int], waiting: Collection[int], *, is_circle: bool
) -> float:
    """How long a holdup lasts. Before its last member waited, a circle was none: that one came late, or worked."""
    if is_circle:
        return min(_waited_s(scenes[rank]) for rank in culprits)
    return max(_waited_s(scenes[rank]) for rank in waiting)


def _waited_s(scene: RankScene) -> float:
    return scene.wait.lasts_s if scene.wait is not None else 0.0


def _reached(rank: int, behind: dict[int, frozenset[int]]) -> set[int]:
    """Everybody at the other end of a chain from `rank`; `rank` itself only where one leads back."""
    reached: set[int] = set()
    left = [rank]
    while left:
        for other in behind.get(left.pop(), ()):
            if other not in reached:
                reached.add(other)
                left.append(other)
    return reached


def _circle(rank: int, behind: dict[int, frozenset[int]]) -> frozenset[int]:
    """The ranks of the circle to which all chains from `rank` lead."""
    reached = _reached(rank, behind)
    return frozenset(other for other in reached if other in _reached(other, behind))


# Whether it is too long


class Standing(StrEnum):
    """How a rank stands that others wait for."""

    SUSPECTED = "suspected"
    """Too early to tell; it should be looked at."""
    SLOW = "slow"
    STALLED = "stalled"


@dataclass(frozen=True)
class Judgement:
    """About ranks that hold others up."""

    standing: Standing
    holdup: Holdup
    suspects: frozenset[int]
    """Those of the culprits of which it holds; in a circle all."""


def judge(
    scenes: Mapping[int, RankScene], stall_after_s: float | None = None, here: Collection[int] | None = None
) -> list[Judgement]:
    """Judge the ranks for which others wait; those that may take their time are left out.

    Args:
        scenes: by rank, of all ranks of the run.
        stall_after_s: how long they may be waited for, if the user set a limit.
        here: the ranks of this node; the others are judged where they are. None: all.
    """
    # While somebody is at a debugger's prompt all others wait, and rightly so.
    if any(scene.doing is not None and scene.doing.phase is Phase.PAUSED for scene in scenes.values()):
        return []
    here = scenes.keys() if here is None else here
    judgements = []
    for holdup in holdups(scenes) or standstill([scenes[rank] for rank in here if rank in scenes]):
        if holdup.is_circle:
            judgements += _of_circle(scenes, holdup, stall_after_s, here)
            continue
        standings = {rank: _standing(scenes[rank], holdup, stall_after_s) for rank in holdup.culprits & frozenset(here)}
        judgements += [
            Judgement(standing, holdup, suspects)
            for standing in (Standing.STALLED, Standing.SLOW, Standing.SUSPECTED)
            if holdup.waiting or standing is not Standing.SLOW  # work for which nobody waits is nobody's business
            if (suspects := frozenset(rank for rank, found in standings.items() if found is standing))
        ]
    return judgements


def _of_circle(
    scenes: Mapping[int, RankScene], holdup: Holdup, stall_after_s: float | None, here: Collection[int]
) -> list[Judgement]:
    """Judge a circle; members on other nodes are suspected here, so that each node looks at its own."""
    limit = min(SHORTEST_S if stall_after_s is None else stall_after_s, SHORTEST_S)
    if holdup.waited_s < limit - LOOK_S:
        return []
    is_certain = holdup.culprits <= frozenset(here) and all(_knows_whom(scenes[rank]) for rank in holdup.culprits)
    is_still = is_certain or all(_exchanges(scenes[rank]) is False for rank in holdup.culprits)
    is_over = holdup.waited_s >= limit and is_still and min(holdup.culprits) in here
    return [Judgement(Standing.STALLED if is_over else Standing.SUSPECTED, holdup, holdup.culprits)]


def _knows_whom(scene: RankScene) -> bool:
    return scene.wait is not None and bool(scene.wait.behind)


def _exchanges(scene: RankScene) -> bool | None:
    """Whether bytes come to a rank or leave it while it waits; None if nobody knows yet."""
    return scene.told_moves if scene.told_moves is not None else exchanges(scene.samples)


def standstill(scenes: Sequence[RankScene]) -> list[Holdup]:
    """All ranks, each in its own part of a step, if they have been there for long and nobody waits; else nothing.

    One rank alone is in it like many that wait for the same disk.

    Args:
        scenes: of the ranks of this node.
    """
    alive = [scene for scene in scenes if scene.life is not Life.ENDED]
    lasts = [
        scene.doing.lasts_s
        for scene in alive
        if scene.doing is not None and scene.doing.phase in PARTS_OF_A_STEP and scene.wait is None
    ]
    if not alive or len(lasts) < len(alive):
        return []
    return [Holdup(frozenset(scene.rank for scene in alive), frozenset(), min(lasts))]


def limit_s(scene: RankScene, holdup: Holdup, stall_after_s: float | None) -> float:
    """How long others may wait for a rank, or all stand still, from what it usually needs for what it does."""
    if stall_after_s is not None:
        return stall_after_s
    usual_s = scene.doing.usual_s if scene.doing is not None else None
    return max(SHORTEST_S if holdup.waiting else STANDSTILL_S, TIMES * (usual_s or 0.0))


def _standing(scene: RankScene, holdup: Holdup, stall_after_s: float | None) -> Standing | None:
    limit = limit_s(scene, holdup, stall_after_s)
    if holdup.waited_s < limit:
        return Standing.SUSPECTED if holdup.waited_s >= limit - LOOK_S else None
    if stall_after_s is not None or scene.life is Life.STOPPED:
        return Standing.STALLED
    # It comes from one phase to the next, so it moves, whatever its processor time says.
    if scene.doing is not None and scene.doing.lasts_s < SHORTEST_S:
        return Standing.SLOW
    moved = movement(scene.samples)
    if moved is None:
        return Standing.SUSPECTED
    return Standing.SLOW if moved.moves else Standing.STALLED


# What to say


def sentence(
    judgement: Judgement,
    scenes: Mapping[int, RankScene],
    lines: Mapping[int, Frame | None],
    homes: Mapping[int, str] | None = None,
) -> str:
    """`62 s: rank 3 has not reached all_reduce(sum) of [4] float32 (train.py:88); ranks 0-2 wait for it; rank 3 is ...`.

    Args:
        judgement: that a rank is slow or stalled.
        scenes: by rank.
        lines: where each of the suspects is in the script, as its stack says.
        homes: the node of each rank, `node 1 (host b)`; None on one node.
    """
    homes = homes or {}
    holdup = judgement.holdup
    seconds = f"{holdup.waited_s:.0f} s"
    if holdup.is_circle:
        each = "; ".join(_wait_text(scenes[rank], holdup, homes) for rank in sorted(holdup.culprits))
        others = holdup.waiting - holdup.culprits
        return "; ".join([f"{seconds}: ranks wait for each other", each, *([_waits(others, "them")] if others else [])])
    there = "; ".join(_where(scenes[rank], lines.get(rank), homes) for rank in sorted(judgement.suspects))
    if not holdup.waiting:
        still = "does not move" if len(judgement.suspects) == 1 else "do not move"
        return f"{seconds}: {ranks_text(judgement.suspects)} {still}, in the middle of a step; {there}"
    first = max(holdup.waiting, key=lambda rank: wait.lasts_s if (wait := scenes[rank].wait) is not None else 0.0)
    one = len(judgement.suspects) == 1
    missing = f"{ranks_text(judgement.suspects)} {'has' if one else 'have'} not reached {awaited(scenes[first])}"
    return f"{seconds}: {missing}; {_waits(holdup.waiting, 'it' if one else 'them')}; {there}"


def _waits(ranks: frozenset[int], whom: str) -> str:
    return f"{ranks_text(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for {whom}"


def awaited(scene: RankScene) -> str:
    """What a rank is in that waits: in the words of its step, where it is in one."""
    wait, doing = scene.wait, scene.doing
    assert wait is not None
    if doing is None:
        return wait.what
    return awaited_text(wait.what, doing.phase, doing.operation, doing.step)


def _wait_text(scene: RankScene, holdup: Holdup, homes: Mapping[int, str]) -> str:
    wait = scene.wait
    assert wait is not None
    behind = wait.behind & holdup.culprits
    return f"{_named(scene, homes)} waits for {ranks_text(behind) if wait.behind else 'others'} in {awaited(scene)}"


def _named(scene: RankScene, homes: Mapping[int, str]) -> str:
    """`rank 3`, `rank 3 on node 1 (host b)`."""
    home = homes.get(scene.rank, "")
    return f"rank {scene.rank}{f' on {home}' if home else ''}"


def _where(scene: RankScene, line: Frame | None, homes: Mapping[int, str]) -> str:
    """Where a suspect is, and what it does there."""
    doing = scene.doing
    place = line.text if line is not None else doing.place if doing is not None else ""
    parts = [f"{_named(scene, homes)} is"]
    if scene.life is Life.STOPPED:
        parts.append("stopped by a signal (SIGCONT resumes it)" + (", it was" if place else ""))
    parts.append(f"at {place}" if place else "somewhere in its script")
    if doing is not None:
        parts.append(f"({phase_text(doing.phase, doing.step, doing.operation)}, for {doing.lasts_s:.0f} s)")
    if moved := movement(scene.samples):
        parts.append(_used(moved))
    why = cause(scene.samples, line) if scene.life is Life.RUNS else None
    return " ".join(parts) + (f": {why.sentence}" if why is not None else "")


def _used(moved: Movement) -> str:
    return f"and uses {moved.cores:.1f} cores" if moved.cores >= 0.05 else "and uses no processor time"
