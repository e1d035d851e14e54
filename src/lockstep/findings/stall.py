"""Ranks that others wait for, and which finding that is."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.diagnosis.scene import Life, RankScene
from lockstep.diagnosis.stalls import Judgement, Standing
from lockstep.findings.catalogue import (
    BUSY_RANK,
    CROSSED_GROUPS,
    MISSING_RANK,
    STALLED_IN_DATA,
    STALLED_IN_SCRIPT,
    STOPPED_PROCESS,
    Finding,
)
from lockstep.journal.record import Phase


def finding_of(judgement: Judgement, scenes: Mapping[int, RankScene]) -> Finding:
    """The finding: of the suspects, the first rank's.

    Args:
        judgement: that ranks are slow or stalled.
        scenes: by rank.
    """
    if judgement.holdup.is_circle:
        return CROSSED_GROUPS
    first = scenes[min(judgement.suspects)]
    if first.life is Life.STOPPED:
        return STOPPED_PROCESS
    if judgement.standing is Standing.SLOW:
        return BUSY_RANK
    waits = [scenes[rank].wait for rank in judgement.holdup.waiting]
    if any(wait is not None and is_meeting(wait.what) for wait in waits):
        return MISSING_RANK
    doing = first.doing.phase if first.doing is not None else None
    return STALLED_IN_DATA if doing is Phase.DATA else STALLED_IN_SCRIPT


def is_meeting(what: str) -> bool:
    """Whether a rank that waits in this waits for others to begin."""
    return what.startswith(("the meeting of", "the store's", "init_process_group", "new_group"))
