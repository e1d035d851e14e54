"""All findings: kinds of trouble that have a name. What hangs, what ends, what is slow, what is wrong, in this order.

A case of one in a run: `samebits.protocol.case`. The pages in docs/findings say what is seen of each.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from samebits.launcher.diagnosis.scene import Life, RankScene
from samebits.launcher.diagnosis.stalls import Judgement, Standing
from samebits.machine.memory_pressure import Shortage
from samebits.protocol.journal.failure import Failure
from samebits.protocol.journal.ring import Phase


@dataclass(frozen=True)
class Finding:
    """A kind of trouble. Texts are Markdown in whole sentences."""

    name: str
    """`stopped-process`: in the run's files, and the name of its page."""
    title: str
    """A short sentence without a full stop."""
    why: str
    """How it comes to that."""
    what_to_do: tuple[str, ...]
    """The first one is printed on the terminal as well."""

    @property
    def first_aid(self) -> str:
        """The first thing to do, as a terminal says it: without Markdown."""
        return self.what_to_do[0].replace("`", "")

    @property
    def aid_afterwards(self) -> str:
        """The first thing to do that still helps when the ranks have ended."""
        return next(step for step in self.what_to_do if "PID" not in step).replace("`", "")


MISSING_RANK = Finding(
    "missing-rank",
    "A rank has not come to the others",
    (
        "All ranks of a group must come to its first meeting. One that reads a large file, downloads, asks a "
        "question or takes another branch before it keeps all others waiting."
    ),
    (
        (
            "Call `samebits.init` or `init_process_group` on every rank, before anything that takes long or that "
            "only some ranks do."
        ),
        (
            "Do what only one rank may do afterwards, with `if run.is_main:`, or in `with run.main_first():` where "
            "all need the result."
        ),
        "`new_group` must be called by all ranks, also by those that are not in the group.",
    ),
)
EARLY_LEAVER = Finding(
    "early-leaver",
    "A rank has left too early, or another one calls an exchange more",
    (
        "Ranks count their steps by themselves in a plain script: one had fewer batches, left a loop with `break`, "
        "or ended when a condition held that does not hold on the others. Or the one that waits calls an exchange "
        "more: a metric that is gathered on rank 0 alone, or once for each batch where ranks have more or fewer."
    ),
    (
        "Let all ranks decide together when to stop: `run.any(done)`, or an `all_reduce` of the flag.",
        "With `run.steps(loader)` every rank has the same steps, however many samples there are.",
        "Compute metrics that gather (`metric.compute()`, `all_gather`) on all ranks, equally often.",
        "In a plain script give every rank as many batches: `DistributedSampler`, `drop_last=True`.",
    ),
)
STALLED_IN_DATA = Finding(
    "stalled-in-data",
    "A rank is stuck in its data",
    (
        "A loader worker waits for a lock that nobody gives back, for a server that does not answer, or for a file "
        "system that has gone. A lock held by another thread at the time of the fork is a common one."
    ),
    (
        (
            "Look at the line in the sentence; give what waits there a time limit (`DataLoader(timeout=60)`, "
            "`timeout=` of a request)."
        ),
        "Start with `--on-stall replace` to end the rank: all ranks start again from their step, with the same bits.",
        "If the line is in a lock of a library: open files, connections and threads inside the worker, not before.",
    ),
)
STALLED_IN_SCRIPT = Finding(
    "stalled-in-script",
    "A rank is stuck in the script",
    (
        "It sleeps, waits for input, for a lock, for a child or for the network; or it calls a collective that the "
        "others do not call, or skips one that they do, as in `if run.is_main: model(x)`."
    ),
    (
        "Find what the rank waits for at that line, and give it a time limit, or let all ranks do the same.",
        "Call what exchanges (models in training, collectives, `barrier`, `save_state`) on all ranks or on none.",
        (
            "Start with `--on-stall replace` to end it, so that all ranks start again from their step, with the same "
            "bits, or with `--on-stall stop` to end the run."
        ),
    ),
)
STOPPED_PROCESS = Finding(
    "stopped-process",
    "A rank was stopped by a signal",
    (
        "Somebody sent SIGSTOP, pressed Ctrl-Z where the terminal was the rank's, or attached a debugger. A batch "
        "system suspends jobs like this."
    ),
    (
        "Resume it with `kill -CONT PID` (`samebits watch` shows the process number).",
        "Start with `--on-stall replace` to end it: all ranks start again from their step, with the same bits.",
    ),
)
BUSY_RANK = Finding(
    "busy-rank",
    "A rank takes its time while others wait",
    "Only this rank evaluates, compiles, saves or prepares data; or it is in a loop that never ends.",
    (
        "Share the work: `run.evaluate(loader)` spreads an evaluation over all ranks.",
        "If it will never end, `--stall-after SECONDS` sets a limit of your own.",
    ),
)
MISMATCHED_COLLECTIVE = Finding(
    "mismatched-collective",
    "Ranks call different collectives",
    "A branch of the script depends on the rank, on its data or on time; or ranks have tensors of different shapes.",
    (
        "Make the same calls in the same order on every rank: compare the lines in the sentence.",
        "Where shapes differ, pad them, or exchange the sizes first.",
        (
            'Over Gloo alone the same script may give a wrong number without a word; `backend="samebits"` checks '
            "every call."
        ),
    ),
)
CROSSED_GROUPS = Finding(
    "crossed-groups",
    "Ranks wait for each other",
    (
        "Two groups are used in a different order on different ranks, a rank calls `barrier` while another one "
        "trains, or two ranks `recv` from each other before they `send`."
    ),
    (
        "Make the same calls in the same order on all ranks, with every group: compare the lines in the sentence.",
        "Exchange between two ranks with `batch_isend_irecv`, or let one of them send first.",
    ),
)
KILLED_FOR_MEMORY = Finding(
    "killed-for-memory",
    "A rank was killed because memory was short",
    (
        "Each rank has its own copy of the model, of its optimizer, and of what the script loads; loader workers add "
        "to that."
    ),
    (
        "Use a smaller batch, fewer ranks or fewer loader workers.",
        "`--strategy zero1` keeps one optimizer state for all ranks; `pipeline` and `model_parallel` cut the model.",
        "Load data lazily or from a memory map, so that ranks share the pages.",
        "In a container or a batch job, ask for more memory: the limit is the control group's.",
    ),
)
CRASH = Finding(
    "crash",
    "A rank has crashed in native code",
    (
        "A C or C++ extension has a bug, was built for another torch or another processor, or a memory-mapped file "
        "became shorter (SIGBUS). Gloo ends the process where ranks made different calls (`collective mismatch`)."
    ),
    (
        "Look at the first lines of the stack: the extension that they name is the one to update or to leave out.",
        "After `collective mismatch`, look for what not all ranks do, as a forward of a model in DistributedDataParallel.",
        "Run with `-n 1` and one thread: if it crashes there too, it is not about ranks.",
        "`samebits doctor` names versions that do not fit together.",
    ),
)
STRAGGLER = Finding(
    "straggler",
    "A rank is slower than the others, step after step",
    (
        "Its cores are shared with another program, it is throttled, its data is farther away, or it does something "
        "that the others do not."
    ),
    (
        "See what else runs on its cores (`top`), and whether its control group throttles it (`cpu.stat`).",
        "In data: give its loader more workers, or put the samples on a local disk.",
        "In forward and backward, or in the script: look for what it does on this rank only.",
    ),
)
SHARED_CORE = Finding(
    "shared-core",
    "All ranks share one core",
    (
        "`OMP_PROC_BIND`, `GOMP_CPU_AFFINITY`, `KMP_AFFINITY`, `taskset`, `mpirun` or a batch system bound the first "
        "process, and the ranks have inherited that; or the script calls `os.sched_setaffinity` with the same core "
        "on each rank."
    ),
    (
        (
            "Remove what binds: unset `OMP_PROC_BIND`, `GOMP_CPU_AFFINITY` and `KMP_AFFINITY`; start `mpirun` with "
            "`--bind-to none`."
        ),
        "In a batch job ask for as many cores as ranks (`--cpus-per-task`).",
    ),
)
CROWDED_CORES = Finding(
    "crowded-cores",
    "Far more threads than cores",
    "All of them compute at once, and each exchange waits for the one that gets its core last.",
    (
        "Start fewer ranks, or set `--threads`: the line says how many.",
        "For the same bits elsewhere keep `lanes=` and `threads=`: the number of ranks is free.",
    ),
)
STARVED_LOADER = Finding(
    "starved-loader",
    "The ranks wait for samples",
    "Reading and augmenting takes longer than computing, and happens before each step instead of beside it.",
    (
        "Let workers fetch while the ranks compute: `DataLoader(num_workers=2)`; the bits stay the same.",
        "Store what is decoded each time (`.npy`, a memory map), or make images smaller once.",
        "If cores are few, fewer ranks with one worker each may be faster.",
    ),
)
SHARED_DEVICE = Finding(
    "shared-device",
    "Several ranks compute on the same GPU",
    (
        'The script says `cuda:0`, or `torch.device("cuda", 0)`, or `.to(0)`. `.cuda()` without a number is right: '
        "samebits sets the current device."
    ),
    (
        "Use `.cuda()` without a number, or `cuda:{os.environ['LOCAL_RANK']}`, or `run.device`.",
        'Load files with `map_location="cpu"`: a saved `cuda:0` comes back on `cuda:0`.',
    ),
)
FULL_DISK = Finding(
    "full-disk",
    "A disk or shared memory is full",
    "States, logs or the script's files have filled the disk; `/dev/shm` is small in containers (64 MB in Docker).",
    (
        "Free some space, or name another place: `--log-dir`, `--states`, `TMPDIR`.",
        "Keep fewer states: `--keep 2`.",
        "In a container start with `--shm-size=2g` or `--ipc=host`.",
    ),
)
WRONG_INTERFACE = Finding(
    "wrong-interface",
    "The network interface that was named does not exist",
    (
        "`GLOO_SOCKET_IFNAME` or `NCCL_SOCKET_IFNAME` comes from another machine's script: interfaces are called "
        "differently there."
    ),
    (
        "Unset `GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME`; ranks on one machine need neither.",
        "`ip -brief address` lists the interfaces of this machine.",
    ),
)
NAN_LOSS = Finding(
    "nan-loss",
    "The loss is not a finite number",
    (
        "A learning rate that is too high, a logarithm or a root of 0, a division by an empty count, a sample that "
        "is broken, or an overflow in half precision."
    ),
    (
        "Look at the samples of that lane in that step: the same command computes the same step again.",
        "Compute in `with torch.autograd.set_detect_anomaly(True):` to get the operation.",
        "Lower the learning rate, or clip: `run.clip_grad_norm_(model.parameters(), 1.0)`.",
    ),
)
REPLICAS_APART = Finding(
    "replicas-apart",
    "Replicas of a DistributedDataParallel model have come apart",
    (
        "DDP compares nothing after it was built. A parameter that was frozen then is never reduced; one that a rank "
        "did not use keeps that rank's gradient; a penalty outside `forward` reaches parameters that DDP takes for "
        "ready; or code behind `if rank == 0` wrote to the model."
    ),
    (
        "Build DistributedDataParallel again after freezing or unfreezing, and compute every loss inside its forward.",
        "Use `find_unused_parameters=True` where ranks use different parts of the model.",
        "If only rank 0 loaded other weights after the training, nothing is wrong.",
        "If the script averages its replicas now and then (post-local SGD), they are apart in between: average once more before they are saved.",
    ),
)

FINDINGS: dict[str, Finding] = {one.name: one for one in list(vars().values()) if isinstance(one, Finding)}
"""By name, in their order."""


# Which one the end of a rank is

CRASHES = frozenset({signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV})
"""Signals that the kernel, or the process itself, sends for what its own code did."""
_FULL = re.compile(r"No space left on device|Disk quota exceeded|Errno (28|122)\b|PytorchStreamWriter failed writing")
_INTERFACE = re.compile(r"Unable to find (address|interface) for|Bootstrap : no socket interface found")


@dataclass(frozen=True)
class End:
    """How the rank ended that is to blame."""

    failure: Failure | None
    signal: int
    """0 when no signal ended it."""
    shortage: Shortage | None = None
    """Whose memory was short when a rank was killed; None if nobody's, or nobody knows."""


def is_full(text: str) -> bool:
    """Whether this says that something could not be written for lack of space."""
    return bool(_FULL.search(text))


def finding_of_end(end: End) -> Finding | None:
    """The finding; None for what a traceback or a mistake's sentence says itself."""
    if end.shortage is not None:
        return KILLED_FOR_MEMORY
    if end.failure is None:
        return CRASH if end.signal in CRASHES else None
    return FINDINGS.get(end.failure.finding) or _by_its_words(end.failure.error)


def _by_its_words(error: str) -> Finding | None:
    """The finding of an exception that is not one of ours."""
    if is_full(error):
        return FULL_DISK
    return WRONG_INTERFACE if _INTERFACE.search(error) else None


# Which one a stall is


def finding_of_stall(judgement: Judgement, scenes: Mapping[int, RankScene]) -> Finding:
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
