"""Ranks that others wait for, and which finding that is."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.diagnosis.scene import Life, RankScene
from lockstep.diagnosis.stalls import Judgement, Standing
from lockstep.findings import (
    busy_rank,
    crossed_groups,
    missing_rank,
    stalled_in_data,
    stalled_in_script,
    stopped_process,
)
from lockstep.findings.finding import Finding
from lockstep.journal.record import Phase


def finding_of(judgement: Judgement, scenes: Mapping[int, RankScene]) -> Finding:
    """The finding: of the suspects, the first rank's.

    Args:
        judgement: that ranks are slow or stalled.
        scenes: by rank.
    """
    if judgement.holdup.is_circle:
        return crossed_groups.FINDING
    first = scenes[min(judgement.suspects)]
    if first.life is Life.STOPPED:
        return stopped_process.FINDING
    if judgement.standing is Standing.SLOW:
        return busy_rank.FINDING
    waits = [scenes[rank].wait for rank in judgement.holdup.waiting]
    if any(wait is not None and is_meeting(wait.what) for wait in waits):
        return missing_rank.FINDING
    doing = first.doing.phase if first.doing is not None else None
    return stalled_in_data.FINDING if doing is Phase.DATA else stalled_in_script.FINDING


def is_meeting(what: str) -> bool:
    """Whether a rank that waits in this waits for others to begin."""
    return what.startswith(("the meeting of", "the store's", "init_process_group", "new_group"))
