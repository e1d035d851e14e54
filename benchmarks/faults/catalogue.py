"""The faults, and how a run is started to which they happen."""

from __future__ import annotations

from dataclasses import dataclass

STEP = 20
SAMPLE = "sample=?"
"""In a fault: a sample that rank 1 uses in that step."""
RANK_1 = f"rank=1 step={STEP}"
REPLACE = ("--on-stall", "replace")
LIMIT = (*REPLACE, "--stall-after", "5")
"""Nobody but the user knows when a loop is too long."""
SMALL_DISK = "mkdir -p samebits-runs && mount -t tmpfs -o size=100m none samebits-runs"
OWN_NETWORK = "ip link set lo up"


@dataclass(frozen=True)
class Row:
    """One fault."""

    title: str
    goal: str
    """Its row of the goals that faults have: F1 to F18; empty where it has none."""
    fault: str
    """As `samebits.testing.faults` reads it; empty where this program does it: it kills the launcher."""
    options: tuple[str, ...] = ()
    """Of `samebits run`."""
    is_plain: bool = False
    """Whether samebits too runs the script with DistributedDataParallel."""
    unshare: str = ""
    """The namespace that the run gets for itself: `mount` or `net`."""
    before: str = ""
    """What a shell does in it first."""
    arguments: tuple[str, ...] = ()
    """Of the plain script."""
    stays: bool = False
    """Whether nothing is to be said or done about it."""


def _stalls(title: str, kind: str, goal: str = "", where: str = RANK_1, options: tuple[str, ...] = REPLACE) -> Row:
    return Row(title, goal, f"{kind} {where}", options)


ROWS = (
    Row("killed (SIGKILL)", "F1", f"kill {RANK_1}"),
    Row("segfault", "F1", f"segfault {RANK_1}"),
    Row("killed by the kernel for memory", "F1", f"killed-for-memory {RANK_1}"),
    _stalls("stopped (SIGSTOP)", "stop", "F2"),
    _stalls("endless loop in Python", "spin", "F2", options=LIMIT),
    _stalls("endless loop in C, keeps the GIL", "hold-gil", "F2", options=LIMIT),
    _stalls("`time.sleep`", "sleep"),
    _stalls("takes a lock twice", "deadlock"),
    _stalls("its thread died by an exception", "dead-thread"),
    _stalls("waits for `flock`", "file-lock"),
    _stalls("full pipe", "full-pipe"),
    _stalls("`input()`, nobody answers", "input"),
    _stalls("state D (a disk that hangs)", "blocked"),
    Row("pause of 0.5 s", "F3", f"sleep {RANK_1} seconds=0.5", REPLACE, stays=True),
    Row("exception", "F4", f"raise {RANK_1}"),
    Row("`sys.exit(0)` too early", "F4", f"leave {RANK_1}"),
    Row("out of memory", "F4", f"out-of-memory {RANK_1}"),
    Row("launcher killed", "F5", ""),
    Row("one rank skips a step", "F7", f"skip {RANK_1}", ("--on-stall", "stop")),
    Row("one rank leaves the loop", "F7", f"break {RANK_1}", ("--on-stall", "stop")),
    Row("one rank evaluates what takes all", "F7", f"evaluate {RANK_1}", ("--on-stall", "stop")),
    Row("another collective", "F7", f"mismatch {RANK_1}", ("--backend", "samebits"), is_plain=True),
    Row("disk of the run full", "F12", f"disk-full {RANK_1} path=samebits-runs",
        ("--name", "full", "--save-every", "5steps"), unshare="mount", before=SMALL_DISK, arguments=("--save",)),
    Row("loader worker killed", "F15", f"kill-worker {RANK_1}"),
    _stalls("loader worker stopped", "stop-worker", "F15"),
    _stalls("loader worker takes a lock twice", "deadlock", "F15", SAMPLE),
    Row("a sample raises", "F15", f"raise {SAMPLE}"),
    Row("slow: 0.2 s more in each step", "F17", f"slow {RANK_1} seconds=0.2"),
    Row("5 % of a core (control group)", "", f"throttle {RANK_1}", REPLACE),
    Row("loopback interface down", "", f"lo-down {RANK_1}", unshare="net", before=OWN_NETWORK),
    Row("plain DDP script: stopped", "F2", f"stop {RANK_1}", ("--on-stall", "stop"), is_plain=True),
    Row("plain DDP script: `time.sleep`", "", f"sleep {RANK_1}", ("--on-stall", "stop"), is_plain=True),
)  # fmt: skip

NOT_HERE = {
    "swap storm": "this machine has no swap",
    "clock jump": "the time of day belongs to the whole machine; nothing here is timed by it but names of files",
    "core dump in progress": "where cores go belongs to the whole machine",
    "`tc netem` loss, half-open TCP, a node's link (F10)": "ranks of one node use no network",
    "FUSE mount that blocks": "state D is made by a `vfork` that does not return; the kernel's wait is the same kind",
}
"""Faults that are not tried, and why."""
ELSEWHERE = {
    "F6": "`tests/ranks/launcher/test_saved_stops.py`",
    "F8": "`tests/faults/test_launch_failures.py`",
    "F11": "`tests/faults/test_faults_while_saving.py`",
    "F13": "`tests/faults/test_flipped_bits.py`",
    "F14": "`tests/ranks/rank/checkpoint/test_resume.py`",
    "F16": "`tests/ranks/rank/checks/test_silent_damage.py`",
    "F18": "measured once, in `benchmarks/results`",
}
"""Goals that have tests or a command of their own."""
