"""The rows of ranks on a page: which of them was killed, which start again with it, and how far they all had come.

While ranks start again their journals are new and say step 0, although nothing is lost. A page shows the step that the start before
had reached, until this one has passed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf, isfinite
from typing import Any

from samebits.launcher.watch.view import State
from samebits.protocol.events import Event, Kind, finite, of_kind

MEBI = 1 << 20
LOST = {Kind.KILL: "killed", Kind.DAMAGE: "damaged"}
"""What all ranks start again after."""


def rank_rows(
    rows: Sequence[dict[str, Any]], events: Sequence[Event], killed: Mapping[int, float], reached: int
) -> list[dict[str, Any]]:
    """What a page says of each rank.

    Args:
        rows: of `samebits.launcher.watch.view`, in the order of ranks.
        events: of the run so far.
        killed: ranks that somebody killed from this page, and when, in seconds since 1970.
        reached: the highest step that any rank was seen to have done.

    Returns:
        For each rank `rank`, `state`, `step` (the newest that is done), `doing`, and `can_kill`.
    """
    begun = [event.time_s for event in of_kind(events, Kind.START)] if not of_kind(events, Kind.END) else []
    spans = list(pairwise([*begun, inf]))
    lost_now = _lost(spans[-1], events, killed) if spans else {}
    lost = lost_now or (_lost(spans[-2], events, killed) if len(spans) > 1 else {})
    # The step in which a rank was lost was not done.
    again = [
        finite(one.fields.get("from") or 0) + finite(one.fields.get("steps_again")) - 1
        for one in of_kind(events, Kind.RESTART)
    ]
    reached = int(max([reached, *(step for step in again if isfinite(step))])) if lost else 0
    return [_row(row, lost, reached, ends=row["rank"] in lost_now, waits=bool(lost_now)) for row in rows]


def _lost(span: tuple[float, float], events: Sequence[Event], killed: Mapping[int, float]) -> dict[int, str]:
    """The ranks that were lost in one start of all, and how: `killed by you`."""
    found = {rank: "killed by you" for rank, at_s in killed.items() if span[0] <= at_s < span[1]}
    for event in of_kind(events, *LOST):
        rank = event.fields.get("rank")
        if isinstance(rank, int) and span[0] <= event.time_s < span[1]:
            found.setdefault(rank, LOST[event.kind])
    return found


def _row(row: Mapping[str, Any], lost: Mapping[int, str], reached: int, *, ends: bool, waits: bool) -> dict[str, Any]:
    rank, step, state = row["rank"], row["step"], str(row["state"])
    has_process = bool(row["pid"]) and state not in {State.ENDED, State.FAILED}
    memory = f"{row['memory_bytes'] / MEBI:,.0f} MiB" if row["memory_bytes"] else ""
    doing = " · ".join(filter(None, (state, memory, row["doing"])))
    if waits or (lost and step == 0):
        state = "lost" if rank in lost else "restarts"
        doing = (
            f"{lost[rank]} at step {reached:,} · new process starts" if rank in lost else "restarting with the others"
        )
    elif step < reached:
        doing = f"computes step {step + 1:,} again"
    return {
        "rank": rank,
        "state": state,
        "step": max(step, reached),
        "doing": doing,
        "can_kill": has_process and not ends,
    }
