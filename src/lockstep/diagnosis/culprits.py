"""For whom ranks wait in the end: they wait for each other along a chain, and it ends at a rank that waits for nobody.

If it ends nowhere, ranks wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    """How long the first of them has waited; a circle, since its last member waits too."""
    is_circle: bool = False


def holdups(scenes: Mapping[int, RankScene]) -> list[Holdup]:
    """Who waits for whom. Ranks that are held up by the same ones come together; the longest wait comes first.

    Args:
        scenes: by rank.
    """
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
