"""Check the models with spin: what must hold, and that planted mistakes are found. A row for each; exit code 1 if one is wrong.

Run by `make model`; needs `spin` and a C compiler. Two checks run at a time, each within 2 GB.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
LIMIT_S = 300
MEMORY_MB = 2000


@dataclass(frozen=True)
class Check:
    """One model with one choice of its numbers, and whether spin must find a fault in it."""

    says: str
    model: str
    numbers: str = ""
    finds_mistake: bool = False


def must_hold(says: str, model: str, numbers: str = "") -> Check:
    return Check(says, model, numbers)


def must_fail(says: str, model: str, numbers: str) -> Check:
    return Check(says, model, numbers, finds_mistake=True)


CHECKS = [
    must_hold("2 ranks wake each other, 3 rounds", "waiting", "ROUNDS=3"),
    must_hold("3 ranks wake each other, 2 rounds", "waiting", "RANKS=3"),
    must_hold("two threads of a rank share a bell", "waiting", "RANKS=3 THREADS=2"),
    must_hold("3 ranks, one breaks the group", "waiting", "RANKS=3 ABORT=1"),
    must_fail("no second look before the sleep", "waiting", "MISTAKE=1"),
    must_fail("no fence between word and bells", "waiting", "MISTAKE=2"),
    must_fail("sleeping whatever the futex says", "waiting", "MISTAKE=3"),
    must_fail("a thread silences its sibling's bell", "waiting", "RANKS=3 THREADS=2 MISTAKE=4"),
    must_fail("breaking the group in silence", "waiting", "ABORT=1 MISTAKE=5"),
    must_hold("2 ranks, 4 operations of any kind", "operations", "OPERATIONS=4"),
    must_hold("3 ranks, 2 operations of any kind", "operations", "RANKS=3 OPERATIONS=2"),
    must_hold("2 ranks, 4 operations, blocks that change hands", "operations", "OPERATIONS=4 DEPTH=1 KINDS=56"),
    must_hold("2 ranks, 3 operations of 3 pieces, the same", "operations", "DEPTH=1 KINDS=56 PIECES=3"),
    must_hold("2 ranks, blocks that change hands, one may die", "operations", "OPERATIONS=2 DEATH=1 KINDS=48"),
    must_hold("2 ranks, rows: more begun than there are rows", "operations", "OPERATIONS=4 DEPTH=3 KINDS=3"),
    must_hold("3 ranks, rows: more begun than there are rows", "operations", "RANKS=3 DEPTH=3 KINDS=1"),
    must_hold("3 ranks, 3 staged operations of 2 pieces", "operations", "RANKS=3 DEPTH=1 KINDS=28"),
    must_hold(
        "3 ranks, 2 staged operations of 3 pieces", "operations", "RANKS=3 OPERATIONS=2 DEPTH=1 KINDS=28 PIECES=3"
    ),
    must_hold("2 ranks that disagree at one operation", "operations", "OPERATIONS=2 DIFFER=1"),
    must_hold("3 ranks that disagree at one operation", "operations", "RANKS=3 OPERATIONS=2 DIFFER=1 KINDS=3"),
    must_hold("2 ranks, one may die", "operations", "OPERATIONS=2 DEATH=1"),
    must_hold("3 ranks, one may die, rows and windows", "operations", "RANKS=3 OPERATIONS=2 DEPTH=1 DEATH=1 KINDS=3"),
    must_hold("3 ranks, one may die, staged", "operations", "RANKS=3 OPERATIONS=1 DEATH=1 KINDS=28"),
    must_hold("2 ranks, one may give up", "operations", "OPERATIONS=2 GIVE_UP=1"),
    must_hold("3 ranks, one may give up", "operations", "RANKS=3 OPERATIONS=1 GIVE_UP=1"),
    must_hold("2 ranks, memory used by two operations under way", "operations", "DEPTH=3 OVERLAP=1 KINDS=3"),
    must_hold(
        "3 ranks, memory used by two operations under way", "operations", "RANKS=3 OPERATIONS=2 OVERLAP=1 KINDS=3"
    ),
    must_hold("2 ranks, the same, one may die", "operations", "OPERATIONS=2 OVERLAP=1 DEATH=1 KINDS=6"),
    must_fail("a row written again without waiting", "operations", "MISTAKE=1"),
    must_fail("a row written again before its owner has worked", "operations", "DEPTH=3 MISTAKE=2 KINDS=1"),
    must_fail("three staging buffers", "operations", "BUFFERS=3"),
    must_fail("two blocks that change hands, not four", "operations", "KINDS=32 MISTAKE=10"),
    must_fail("leaving windows before all have worked", "operations", "MISTAKE=3"),
    must_fail("reading a sum before its second step", "operations", "MISTAKE=4"),
    must_fail("a number from the tensor of one who gave up", "operations", "GIVE_UP=1 MISTAKE=5"),
    must_fail("a number from the tensor of one who disagrees later", "operations", "DIFFER=1 MISTAKE=5"),
    must_fail("comparing with the next rank only", "operations", "RANKS=3 OPERATIONS=1 DIFFER=1 KINDS=1 MISTAKE=6"),
    must_fail("nobody looks for the dead", "operations", "DEATH=1 MISTAKE=7"),
    must_fail("published while an earlier one uses its memory", "operations", "OVERLAP=1 MISTAKE=8"),
    must_fail("published when the earlier one is worked, not ended", "operations", "OVERLAP=1 KINDS=3 MISTAKE=9"),
]


@dataclass(frozen=True)
class Verdict:
    check: Check
    fault: str
    num_states: int
    is_complete: bool
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether a complete search found no fault, or the planted one was found."""
        return bool(self.fault) if self.check.finds_mistake else self.is_complete and not self.fault


def run(check: Check) -> Verdict:
    """Generate the verifier, compile it, search all states."""
    numbers = [f"-D{each}" for each in check.numbers.split()]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="samebits-model-") as folder:
        said = _do(folder, "spin", "-a", *numbers, str(FOLDER / f"{check.model}.pml"))
        if not Path(folder, "pan.c").exists():
            raise SystemExit(said)
        _do(folder, "cc", "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}", "-o", "pan", "pan.c")
        said = _do(folder, "./pan", "-m100000")
    fault = re.search(r"^pan:1: (.+?)(?: \(at depth \d+\))?$", said, re.MULTILINE)
    states = re.search(r"(\d+) states, stored", said)
    is_complete = "errors: 0" in said and not re.search(r"MEMLIM bound|max search depth|not completed", said)
    num_states = int(states.group(1)) if states else 0
    return Verdict(check, fault.group(1) if fault else "", num_states, is_complete, time.monotonic() - begun)


def _do(folder: str, *command: str) -> str:
    """Run a command in the folder; what it printed. The verifier's exit code says nothing that its output does not."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.stdout + done.stderr


def main() -> int:
    missing = [name for name in ("spin", "cc") if shutil.which(name) is None]
    if missing:
        print(f"{' and '.join(missing)} not found: apt-get install spin gcc")
        return 2
    begun = time.monotonic()
    wrong = 0
    with ThreadPoolExecutor(2) as pool:
        for verdict in pool.map(run, CHECKS):
            check = verdict.check
            result = (
                f"found: {verdict.fault[:60]}"
                if verdict.fault
                else "holds"
                if verdict.is_complete
                else "not searched to the end"
            )
            mark = "ok " if verdict.is_right else "BAD"
            print(
                f"{mark} {check.model:10} {check.says:52} {verdict.num_states:>11,} {verdict.seconds:6.1f} s  {result}",
                flush=True,
            )
            wrong += not verdict.is_right
    print(f"{len(CHECKS)} checks, {wrong} wrong, {time.monotonic() - begun:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
