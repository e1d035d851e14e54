"""Every script that the documentation shows and that trains loses each of its ranks once: undisturbed bits, from a step."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lockstep.journal.ring import JournalReader
from tests.support.environment import ROOT
from tests.support.launching import LIMIT_S, Finished, Running, start

pytestmark = [pytest.mark.ranks, pytest.mark.thorough]

RANKS = 2
SCRIPTS: dict[str, tuple[str, ...]] = {
    "examples/digits.py": ("--epochs", "3"),
    "examples/gpt.py": ("--steps", "12", "--test-every", "6"),
    "examples/quickstart.py": (),
    "examples/migration/after.py": (),
    **{f"examples/recipes/{file.name}": () for file in sorted((ROOT / "examples/recipes").glob("*.py"))},
    "examples/notes/ddp_with_sampler_lockstep.py": (),
    "examples/notes/save_and_load_lockstep.py": (),
}
FROM_A_SNAPSHOT = {
    "examples/recipes/closures.py": "its optimizer calls the pass again, and a pass after an update is no beginning",
}
"""Those that may also go on from a step further back, or from the beginning where none was kept yet, and why."""


NAMED = {"examples/recipes/carried_state.py": "states"}
"""What no state holds of a script, so that it is named beside its bits, which are others then."""


def run(place: Path, script: str) -> Running:
    place.mkdir(exist_ok=True)
    return start(place, "-n", str(RANKS), "--threads", "1", str(ROOT / script), *SCRIPTS[script])


def bits_of(finished: Finished) -> str:
    assert finished.code == 0, finished.err
    found = re.search(r"bits +(sha256:\w+)(.*)", finished.err)
    assert found is not None, finished.err
    assert "resumed without" not in found[2], f"nothing may be named: {found[0]}"
    return found[1]


def kill_at(running: Running, rank: int, step: int) -> int:
    """Kill a rank as soon as its journal shows this step or a later one; return that step.

    The journal is looked at as often as it can be: a step of these takes a few milliseconds.
    """
    until = time.monotonic() + LIMIT_S
    while running.process.poll() is None and time.monotonic() < until:
        for file in running.place.glob(f"lockstep-runs/*/journal/rank-{rank:05d}.ring"):
            with suppress(OSError, ValueError):
                journal = JournalReader(file)
                last = journal.last()
                if last is not None and last.step is not None and last.step >= step:
                    os.kill(journal.pid, signal.SIGKILL)
                    return last.step
        time.sleep(0.001)
    raise AssertionError(f"rank {rank} never came to step {step}:\n{running.err}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, int]]:
    """Of each script that was asked for: its bits, and the number of its steps."""
    return {}


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_killed_rank_costs_a_step(
    tmp_path: Path, undisturbed: dict[str, tuple[str, int]], script: str, rank: int
) -> None:
    if script not in undisturbed:
        finished = run(tmp_path / "undisturbed", script).finish()
        steps = re.search(r"(\d+) steps in", finished.err)
        assert steps is not None, finished.err
        undisturbed[script] = bits_of(finished), int(steps[1])
    bits, steps = undisturbed[script]
    running = run(tmp_path / "killed", script)
    try:
        kill_at(running, rank, max(2, steps // 3))
    finally:
        finished = running.finish()
    assert "was killed by signal 9" in finished.err
    if script in NAMED:
        assert f"resumed without: {NAMED[script]}" in finished.err
        return
    assert bits_of(finished) == bits
    if script not in FROM_A_SNAPSHOT:
        assert "from the beginning" not in finished.err, finished.err
