"""False alarms: training that makes ranks wait for each other for good reasons, and how often somebody is called stalled.

    python -m benchmarks.alarms --minutes 10          all loads in turn, on a busy machine
    python -m benchmarks.alarms --json

Evaluations and children of one rank, a first step that compiles, slow samples, states and large files that are written, beside as many
busy processes as there are cores. None of the ranks is stuck, so every line `stalled` is a false alarm. Also counted: what was called slow,
and the processor time of the launcher, which is what looking costs. The exit code is 0 when there was no false alarm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.ending import ends_shortly
from lockstep.handover.case import cases_in
from lockstep.handover.run_folder import RunFolder
from lockstep.machine.process_state import process_state

SCRIPT = Path(__file__).with_name("alarms_training.py")
LOADS = (
    "nothing",
    "evaluation on rank 0",
    "a child of rank 0",
    "compile",
    "uneven data",
    "decoding",
    "workers",
    "saves",
    "a large file",
    "prepare first",
)
NEIGHBOUR = "while True: sum(range(10000))"
LOOK_S = 1.0


@dataclass
class Watched:
    """What was seen of one load."""

    load: str
    ranks: int
    steps: int
    seconds: float
    stalled: list[str]
    slow: int
    launcher_share: float
    """Of one core, from the first second of the run on."""


@contextlib.contextmanager
def neighbours(number: int) -> Iterator[None]:
    """So many processes that only compute."""
    running = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) for _ in range(number)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def watch(load: str, ranks: int, seconds: float, place: Path) -> Watched:
    """Train under a load.

    Raises:
        SystemExit: when the run fails.
    """
    command = [
        sys.executable,
        "-m",
        "lockstep",
        "run",
        "-n",
        str(ranks),
        "--threads",
        "1",
        str(SCRIPT),
        load,
        str(seconds),
    ]
    began, used = time.monotonic(), []
    with (place / "err.txt").open("w") as err, subprocess.Popen(command, cwd=place, stdout=err, stderr=err) as launcher:
        while launcher.poll() is None:
            if (state := process_state(launcher.pid)) is not None:
                used.append((time.monotonic(), state.processor_s))
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(LOOK_S)
    if launcher.returncode:
        raise SystemExit(f"{load}: exit code {launcher.returncode}\n{(place / 'err.txt').read_text()}")
    folder = RunFolder(next((place / "lockstep-runs").iterdir()))
    cases = [case.said for case in cases_in(folder.findings)]
    middle = used[len(used) // 4 : -2]
    share = (middle[-1][1] - middle[0][1]) / (middle[-1][0] - middle[0][0]) if len(middle) > 1 else 0.0
    return Watched(
        load,
        ranks,
        int(json.loads(folder.result.read_text()).get("steps") or 0),
        time.monotonic() - began,
        [said for said in cases if said.startswith("stalled")],
        sum(said.startswith("slow") for said in cases),
        share,
    )


@ends_shortly
def main() -> None:
    """Watch all loads, in turn, for the time that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--each", type=float, default=30.0, help="seconds of training under each load")
    parser.add_argument("--neighbours", type=int, default=os.cpu_count() or 1, help="processes that only compute")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    end, seen, round_number = time.monotonic() + 60 * options.minutes, [], 0
    with neighbours(options.neighbours):
        while time.monotonic() < end:
            for load in LOADS:
                ranks = 2 + 2 * (round_number % 2)
                with tempfile.TemporaryDirectory(prefix="lockstep-alarms-") as place:
                    one = watch(load, ranks, options.each, Path(place))
                seen.append(one)
                if not options.json:
                    print(
                        f"{one.load:<22} {one.ranks} ranks {one.steps:>7} steps {one.seconds:>6.0f} s  stalled {len(one.stalled)}"
                        f"  slow {one.slow}  launcher {one.launcher_share:.2%} of a core",
                        flush=True,
                    )
                    for said in one.stalled:
                        print(f"    {said}", flush=True)
                if time.monotonic() >= end:
                    break
            round_number += 1
    alarms, steps = sum(len(one.stalled) for one in seen), sum(one.steps for one in seen)
    if options.json:
        print(json.dumps({"watched": [asdict(one) for one in seen], "alarms": alarms, "steps": steps}))
    else:
        print(f"{alarms} false alarms in {steps:,} steps and {sum(one.seconds for one in seen) / 60:.0f} minutes")
    sys.exit(1 if alarms else 0)


if __name__ == "__main__":
    main()
