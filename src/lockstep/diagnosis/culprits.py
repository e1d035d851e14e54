"""For whom ranks wait in the end: they wait for each other along a chain, and it ends at a rank that waits for nobody.

If it ends nowhere, ranks wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.diagnosis.scene import Life, RankScene


@dataclass(frozen=True)
class Holdup:
    """Ranks that wait, and those that hold them up."""

    culprits: frozenset[int]
    """The ends of all chains; in a circle its members."""
    waiting: frozenset[int]
    """Those that wait for them, directly or not; in a circle also its members."""
    waited_s: float
    """How long the first of them has waited."""
    is_circle: bool = False


def holdups(scenes: Sequence[RankScene]) -> list[Holdup]:
    """Who waits for whom. Ranks that are held up by the same ones come together; the longest wait comes first.

    Args:
        scenes: rank r is at index r.
    """
    alive = frozenset(scene.rank for scene in scenes if scene.life is not Life.ENDED)
    behind = {
        scene.rank: (scene.wait.behind or alive) & alive - {scene.rank}
        for scene in scenes
        if scene.wait is not None and scene.rank in alive
    }
    found: dict[tuple[frozenset[int], bool], set[int]] = {}
    for rank in behind:
        reached = _reached(rank, behind)
        free = frozenset(reached - behind.keys())
        if free or reached:
            found.setdefault((free or _circle(rank, behind), not free), set()).add(rank)
    together = [
        Holdup(culprits, frozenset(waiting), max(_waited_s(scenes[rank]) for rank in waiting), is_circle)
        for (culprits, is_circle), waiting in found.items()
    ]
    return sorted(together, key=lambda holdup: (-holdup.waited_s, sorted(holdup.culprits)))


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
