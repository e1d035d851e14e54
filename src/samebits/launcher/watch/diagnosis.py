"""What went wrong in a run, or does now: from its folder, and from its processes while there are any."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from samebits.launcher.diagnosis.findings import BUSY_RANK, finding_of_stall
from samebits.launcher.diagnosis.scene import Life, RankScene
from samebits.launcher.diagnosis.scenes import FIRST_S, Scenes
from samebits.launcher.diagnosis.stalls import LOOK_S, SHORTEST_S, Standing
from samebits.launcher.watch.places import Run
from samebits.launcher.watch.view import View, Viewer
from samebits.protocol.case import Case, cases_in, latest
from samebits.protocol.run_folder import RunFolder, read_json, read_lines

EVERY_S = 0.25


@dataclass(frozen=True)
class Diagnosis:
    """A run as sentences and rows."""

    headline: str
    """How it stands: under way, ended well, failed, or left without an end."""
    is_bad: bool
    """Whether somebody should look."""
    block: str = ""
    """The failure block that the launcher printed; empty if there was none."""
    losses: tuple[str, ...] = ()
    """What was lost on the way, oldest first."""
    cases: tuple[Case, ...] = ()
    """The findings, as they were reported then, oldest first, and those of now."""
    now: tuple[Case, ...] = ()
    view: View = field(default_factory=lambda: View(()))

    def as_json(self) -> dict[str, Any]:
        return {
            "headline": self.headline,
            "is_bad": self.is_bad,
            "block": self.block,
            "losses": list(self.losses),
            "findings": [
                {"finding": case.finding, "ranks": list(case.ranks), "said": case.said, "time": case.time_s}
                for case in self.cases
            ],
            "ranks": [vars(row) for row in self.view.rows],
        }


def diagnose(run: Run) -> Diagnosis:
    """Look at a run; takes some seconds while its ranks wait for each other, to tell stuck from slow.

    Raises:
        UsageError: when its folder cannot be read.
    """
    viewer = Viewer(run)
    view, outcome = viewer.look(), read_json(run.folder.outcome)
    losses = tuple(str(told.get("lost", "")) for told in read_lines(run.folder.restarts))
    cases = tuple(cases_in(run.folder.findings))
    if outcome:
        headline, is_bad = _ended(outcome)
        return Diagnosis(headline, is_bad, block_in(run.folder), losses, cases, view=view)
    if view.is_over:
        return Diagnosis(_abandoned(view), True, "", losses, cases, view=view)
    now = _stalled_now(viewer, view)
    headline = f"under way: {len(view.pids)} of {len(view.rows)} rank{'s' * (len(view.rows) != 1)} {'has' if len(view.pids) == 1 else 'have'} a process"
    return Diagnosis(headline, is_stuck(now), "", losses, (*cases, *now), now, viewer.look())


def block_in(folder: RunFolder) -> str:
    """The failure block that the launcher of a run printed; empty where there was none, or not yet."""
    return str(read_json(folder.outcome).get("block") or "")


def not_in(block: str, cases: Iterable[Case]) -> list[Case]:
    """The newest of these cases that the block does not say already: both begin with the same clause."""
    return [case for case in latest(cases) if case.said.partition("; ")[0] not in block]


def is_stuck(now: Iterable[Case]) -> bool:
    """Whether one of these is not merely slow."""
    return any(case.finding != BUSY_RANK.name for case in now)


def _ended(outcome: dict[str, Any]) -> tuple[str, bool]:
    code, seconds = outcome.get("exit_code"), outcome.get("duration_s")
    number = outcome.get("signal")
    how = f"by signal {number}" if number else "well" if code == 0 else f"with exit code {code}"
    return f"ended {how} after {seconds} s", code != 0


def _abandoned(view: View) -> str:
    begun = "ended without an outcome: the launcher was killed, or the machine went down."
    last = min((row for row in view.rows if row.doing), key=lambda row: row.lasts_s, default=None)
    if last is None:
        return f"{begun} No rank has left a sign of life."
    steps = sorted({row.step for row in view.rows})
    reached = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    place = f" ({last.place})" if last.place and last.place not in last.doing else ""
    return (
        f"{begun} The ranks had come to {reached}; the last sign of life is of rank {last.rank}, {last.doing}{place}."
    )


def _stalled_now(viewer: Viewer, view: View) -> tuple[Case, ...]:
    """Who holds others up now; looks at suspects for as long as it takes to tell."""
    roster = viewer.run.roster
    elsewhere = {rank: RankScene(rank, Life.RUNS, None, None) for rank in (roster.elsewhere if roster else ())}
    scenes_of, began = Scenes(viewer.run.title, viewer.journals, viewer.run.folder.answers), time.monotonic()
    try:
        while True:
            (scenes, judgements), looked_s = scenes_of.judge(view.pids, elsewhere=elsewhere), time.monotonic() - began
            told = [one for one in judgements if one.standing is not Standing.SUSPECTED]
            somebody_waits = any(scene.wait is not None and scene.wait.lasts_s >= FIRST_S for scene in scenes.values())
            # Telling stuck from slow takes some seconds of samples; where nobody waits there is nothing to tell.
            patience_s = SHORTEST_S + LOOK_S if somebody_waits else LOOK_S
            if (told and len(told) == len(judgements)) or looked_s > patience_s or view.is_over:
                return tuple(
                    Case(
                        finding_of_stall(one, scenes).name,
                        f"{one.standing} {scenes_of.sentence(one, scenes)}",
                        tuple(sorted(one.suspects)),
                    )
                    for one in told
                )
            time.sleep(EVERY_S)
            view = viewer.look()
    finally:
        scenes_of.end()
