"""When a fault's moment has come: it happens once in a run, and a file says so before it does.

The file outlives the process, so ranks that start again find that it has happened.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from samebits.errors import UsageError
from samebits.testing.faults.acts import SCRIPTS_OWN, act, slow_down
from samebits.testing.faults.plan import Fault, Plan

PLAN, FOLDER = "SAMEBITS_FAULTS", "SAMEBITS_FAULTS_FOLDER"


@dataclass(frozen=True)
class Fired:
    """One fault that has happened."""

    fault: str
    rank: int
    pid: int
    """The process that it happened to; that of a loader worker where it is one."""
    monotonic_s: float
    """When, by the clock that all processes of a machine share."""


def at(step: int) -> str:
    """Let happen what SAMEBITS_FAULTS has for this rank at this step; nothing without it.

    Call it once in each step, on every rank. Under any launcher that sets RANK.

    Returns:
        What the script has to do itself: "skip", "break" or "evaluate"; otherwise an empty text.
    """
    if not os.environ.get(PLAN):
        return ""
    slow_down()
    rank = int(os.environ.get("RANK", "0"))
    for number, fault in _plan(os.environ[PLAN]).at(rank, step):
        if _happens(number, fault, rank):
            act(fault)
            if fault.kind in SCRIPTS_OWN:
                return fault.kind
    return ""


def sample(index: int) -> None:
    """Let happen what SAMEBITS_FAULTS has for whoever fetches this sample; for a data set's `__getitem__`."""
    if not os.environ.get(PLAN):
        return
    for number, fault in _plan(os.environ[PLAN]).of_sample(index):
        if _happens(number, fault, int(os.environ.get("RANK", "0"))):
            act(fault)


def variables(plan: str, folder: str | os.PathLike[str]) -> dict[str, str]:
    """The environment of a run to which this plan happens.

    Args:
        plan: faults with `;` between them.
        folder: where files say what has happened; one for each run.

    Raises:
        UsageError: for a plan that cannot be read.
    """
    return {PLAN: str(Plan.parse(plan)), FOLDER: str(Path(folder).resolve())}


def fired(folder: str | os.PathLike[str]) -> list[Fired]:
    """What has happened, in that order."""
    found = [Fired(**json.loads(file.read_text())) for file in Path(folder).glob("fired-*.json")]
    return sorted(found, key=lambda each: each.monotonic_s)


def assert_fired(plan: str, folder: str | os.PathLike[str]) -> Sequence[Fired]:
    """What has happened, when all of the plan has.

    Raises:
        AssertionError: something has not; a test that continued would show nothing.
    """
    found = fired(folder)
    missing = sorted({str(fault) for fault in Plan.parse(plan).faults} - {each.fault for each in found})
    if missing:
        raise AssertionError(f"these faults never happened: {'; '.join(missing)}")
    return found


@lru_cache
def _plan(text: str) -> Plan:
    return Plan.parse(text)


def _happens(number: int, fault: Fault, rank: int) -> bool:
    """Say that it happens, in a file that comes whole; False if it did before."""
    if not os.environ.get(FOLDER):
        raise UsageError(f"{PLAN} is set, but {FOLDER} is not.", f"Set {FOLDER} to an empty folder.")
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / f".firing-{number}-{os.getpid()}"
    record.write_text(json.dumps(asdict(Fired(str(fault), rank, os.getpid(), time.monotonic()))))
    # A link is made once: of two processes that come to a fault together, one fires.
    with suppress(FileExistsError):
        os.link(record, folder / f"fired-{number}.json")
        record.unlink()
        return True
    record.unlink()
    return False
