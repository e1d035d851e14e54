"""What a node reports to the others about its ranks while somebody waits, and what they make of it. Pure; JSON in between.

While no rank waits for long nothing is reported. A report holds until the node sends another one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from samebits.launcher.diagnosis.movement import exchanges
from samebits.launcher.diagnosis.scene import Doing, Life, RankScene, Wait
from samebits.launcher.diagnosis.stalls import LOOK_S, SHORTEST_S, awaited
from samebits.protocol.journal.ring import Phase

LEAST_S = 1.0
"""A shorter wait is a part of each step, and nobody's business."""
TIMES_USUAL = 2
"""A rank that waits long in each step reports a wait that is twice as long."""
PAUSE_S = 1.0
"""Between two reports of a node; that nobody waits any more is reported at once."""


@dataclass
class WaitReporter:
    """Decides what one node reports, and when.

    Args:
        stall_after_s: how long a rank may be waited for, if the user set a limit.
    """

    stall_after_s: float | None = None
    _last: dict[str, Any] = field(default_factory=dict)
    _reported_at_s: float = -math.inf

    def next(self, scenes: Mapping[int, RankScene], now_s: float, *, are_asked: bool) -> dict[str, Any] | None:
        """What to report now; None if it was reported already, or nobody has to know.

        Args:
            scenes: of the ranks of this node.
            now_s: the time.
            are_asked: whether another node reported that its ranks wait.
        """
        waits = [one for scene in scenes.values() if (one := self._wait(scene, are_asked=are_asked)) is not None]
        report: dict[str, Any] = {}
        if waits or are_asked:
            report = {
                "waits": waits,
                "ended": [scene.rank for scene in scenes.values() if scene.life is Life.ENDED],
                "is_paused": any(_is_paused(scene) for scene in scenes.values()),
            }
        report = {key: value for key, value in report.items() if value}
        if _lasting(report) == _lasting(self._last) or (report and now_s - self._reported_at_s < PAUSE_S):
            return None
        self._last, self._reported_at_s = report, now_s
        return report

    def _wait(self, scene: RankScene, *, are_asked: bool) -> dict[str, Any] | None:
        wait, usual_s = scene.wait, scene.doing.usual_s if scene.doing is not None else None
        if wait is None or scene.life is Life.ENDED:
            return None
        limit_s = min(SHORTEST_S if self.stall_after_s is None else self.stall_after_s, SHORTEST_S) - LOOK_S
        if wait.lasts_s < (LEAST_S if are_asked else max(limit_s, LEAST_S, TIMES_USUAL * (usual_s or 0.0))):
            return None
        return {
            "rank": scene.rank,
            "lasts_s": round(wait.lasts_s, 3),
            "behind": spans(wait.behind),
            "what": awaited(scene),
            "moves": exchanges(scene.samples),
        }


def _is_paused(scene: RankScene) -> bool:
    return scene.doing is not None and scene.doing.phase is Phase.PAUSED


def _lasting(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report, without what grows by itself."""
    waits = [{key: value for key, value in wait.items() if key != "lasts_s"} for wait in report.get("waits", [])]
    return {**report, "waits": waits}


def scenes_of(report: Mapping[str, Any], ranks: Collection[int], age_s: float) -> dict[int, RankScene]:
    """The scenes of another node's ranks.

    Args:
        report: its last report; empty if there was none.
        ranks: its ranks.
        age_s: how long ago that was.
    """
    waits = {wait["rank"]: wait for wait in report.get("waits", [])}
    paused = Doing(Phase.PAUSED, "", 0, "", 0.0, None) if report.get("is_paused") else None
    return {
        rank: RankScene(
            rank,
            Life.ENDED if rank in report.get("ended", []) else Life.RUNS,
            paused,
            _read(waits[rank], age_s) if rank in waits else None,
            told_moves=waits[rank]["moves"] if rank in waits else None,
        )
        for rank in ranks
    }


def _read(wait: Mapping[str, Any], age_s: float) -> Wait:
    return Wait(float(wait["lasts_s"]) + age_s, unspan(wait["behind"]), str(wait["what"]))


def spans(ranks: Collection[int]) -> list[list[int]]:
    """`[[0, 62], [64, 64]]`: the first and the last of each stretch of ranks."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return found


def unspan(report: Collection[Collection[int]]) -> frozenset[int]:
    """The inverse of `spans`."""
    return frozenset(rank for first, last in report for rank in range(first, last + 1))
