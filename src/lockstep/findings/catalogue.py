"""All findings: kinds of trouble that have a name. What hangs, what ends, what is slow, what is wrong, in this order.

A case of one in a run: `lockstep.handover.case`. The pages in docs/findings are made of this table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A kind of trouble. Texts are Markdown in whole sentences."""

    name: str
    """`stopped-process`: in the run's files, and the name of its page."""
    title: str
    """A short sentence without a full stop."""
    seen: str
    """What was seen that says so."""
    example: str
    """What the terminal says."""
    why: str
    """How it comes to that."""
    what_to_do: tuple[str, ...]
    """The first one is said in the terminal as well."""

    @property
    def first_aid(self) -> str:
        """The first thing to do, as a terminal says it: without Markdown."""
        return self.what_to_do[0].replace("`", "")

    @property
    def aid_afterwards(self) -> str:
        """The first thing to do that still helps when the ranks have ended."""
        return next(step for step in self.what_to_do if "PID" not in step).replace("`", "")


MISSING_RANK = Finding(
    name="missing-rank",
    title="A rank has not come to the others",
    seen=(
        "Ranks wait in `lockstep.init`, `init_process_group` or `new_group`, and another one has not called it. "
        "Its process is alive; the sentence has the line where it is."
    ),
    example="""\
stalled   5 s: rank 1 has not reached the meeting of a group with rank 1 (train.py:27); rank 0 waits for it;
          rank 1 is at train.py:12 and uses no processor time
""",
    why=(
        "All ranks of a group must come to its first meeting. One that reads a large file, downloads, asks a "
        "question or takes another branch before it keeps all others waiting."
    ),
    what_to_do=(
        (
            "Call `lockstep.init` or `init_process_group` on every rank, before anything that takes long or that only "
            "some ranks do."
        ),
        (
            "Do what only one rank may do afterwards, with `if run.is_main:`, or in `with run.main_first():` where all "
            "need the result."
        ),
        "`new_group` must be called by all ranks, also by those that are not in the group.",
    ),
)
EARLY_LEAVER = Finding(
    name="early-leaver",
    title="A rank has left too early, or another one calls an exchange more",
    seen=(
        "A rank ended with exit code 0, by `sys.exit(0)` or at the end of its script, and another one then waited "
        "for it in an exchange."
    ),
    example="""\
FAILED    rank 1 ended with exit code 0 (sys.exit at train.py:9), while rank 0 went on to its next exchange
  at /home/ada/train.py:10
    dist.all_reduce(torch.ones(2))
""",
    why=(
        "Ranks count their steps by themselves in a plain script: one had fewer batches, left a loop with "
        "`break`, or ended when a condition held that does not hold on the others. Or the one that waits calls an exchange "
        "more: a metric that is gathered on rank 0 alone, or once for each batch where ranks have more or fewer."
    ),
    what_to_do=(
        "Let all ranks decide together when to stop: `run.any(done)`, or an `all_reduce` of the flag.",
        "With `run.steps(loader)` every rank has the same steps, however many samples there are.",
        "Compute metrics that gather (`metric.compute()`, `all_gather`) on all ranks, equally often.",
        "In a plain script give every rank as many batches: `DistributedSampler`, `drop_last=True`.",
    ),
)
STALLED_IN_DATA = Finding(
    name="stalled-in-data",
    title="A rank is stuck in its data",
    seen=(
        "Others wait for a rank whose last word was that it fetches samples. It does not compute and reads "
        "nothing; where a loader worker is to blame, the line is the worker's."
    ),
    example="""\
stalled   5 s: rank 1 has not reached the exchange of gradients of step 1 (train.py:32); rank 0 waits for it;
          rank 1 is at train.py:23 in Data.__getitem__ (waiting for samples of step 1, for 5 s) and uses no
          processor time
""",
    why=(
        "A loader worker waits for a lock that nobody gives back, for a server that does not answer, or for a "
        "file system that has gone. A lock held by another thread at the time of the fork is a common one."
    ),
    what_to_do=(
        (
            "Look at the line in the sentence; give what waits there a time limit (`DataLoader(timeout=60)`, "
            "`timeout=` of a request)."
        ),
        "Start with `--on-stall replace` to end the rank: all ranks start again from their step, with the same bits.",
        ("If the line is in a lock of a library: open files, connections and threads inside the worker, not before."),
    ),
)
STALLED_IN_SCRIPT = Finding(
    name="stalled-in-script",
    title="A rank is stuck in the script",
    seen=(
        "Others have waited for it for longer than 5 s and 8 times its usual time. With all its threads and children "
        "it uses less than 1 % of a core, and neither reads nor writes."
    ),
    example="""\
stalled   5 s: rank 1 has not reached the exchange of gradients of step 3 (train.py:32); rank 0 waits for it;
          rank 1 is at train.py:40 (end of step 2, for 5 s) and uses no processor time
""",
    why=(
        "It sleeps, waits for input, for a lock, for a child or for the network; or it calls a collective that "
        "the others do not call, or skips one that they do, as in `if run.is_main: model(x)`."
    ),
    what_to_do=(
        "Look at the line in the sentence, and find what the rank waits for there.",
        "Call what exchanges (models in training, collectives, `barrier`, `save_state`) on all ranks or on none.",
        (
            "Start with `--on-stall replace` to end it, so that all ranks start again from their step, with the same bits, or with `--on-stall stop` "
            "to end the run."
        ),
    ),
)
STOPPED_PROCESS = Finding(
    name="stopped-process",
    title="A rank was stopped by a signal",
    seen="The kernel says that its process is stopped (state T); others wait for it.",
    example="""\
stalled   5 s: rank 1 has not reached the exchange of gradients of step 3 (train.py:32); rank 0 waits for it;
          rank 1 is stopped by a signal (SIGCONT lets it go on), it was at train.py:42 (end of step 2, for 5 s)
help      Let it go on with kill -CONT 4121 (lockstep watch shows the process number).
""",
    why=(
        "Somebody sent SIGSTOP, pressed Ctrl-Z where the terminal was the rank's, or attached a debugger. A batch "
        "system suspends jobs like this."
    ),
    what_to_do=(
        "Let it go on with `kill -CONT PID` (`lockstep watch` shows the process number).",
        "Start with `--on-stall replace` to end it: all ranks start again from their step, with the same bits.",
    ),
)
BUSY_RANK = Finding(
    name="busy-rank",
    title="A rank takes its time while others wait",
    seen=(
        "Others wait for it, and it moves: it, its threads or its children use 1 % of a core or more, read or write. It "
        "is called slow, not stalled, and nothing is done about it."
    ),
    example="""\
slow      5 s: rank 1 has not reached the exchange of gradients of step 3 (train.py:32); rank 0 waits for it;
          rank 1 is at train.py:46 in evaluate (end of step 2, for 5 s) and uses 1.0 cores
""",
    why="Only this rank evaluates, compiles, saves or prepares data; or it is in a loop that never ends.",
    what_to_do=(
        "Share the work: `run.evaluate(loader)` spreads an evaluation over all ranks.",
        "If it will never end, `--stall-after SECONDS` sets a limit of your own.",
    ),
)
MISMATCHED_COLLECTIVE = Finding(
    name="mismatched-collective",
    title="Ranks call different collectives",
    seen=(
        "Each call of a collective is described in shared memory: operation, shape, dtype, reduction, root. Two "
        "ranks described different ones; the sentence has both lines."
    ),
    example="""\
error: The default group: The ranks call different operations. rank 0: all_reduce(sum) of 2 float32 at
       train.py:10; rank 1: all_reduce(maximum) of 2 float32 at train.py:10.
help: Make the same calls in the same order on every rank.
""",
    why=(
        "A branch of the script depends on the rank, on its data or on time; or ranks have tensors of different shapes."
    ),
    what_to_do=(
        "Make the same calls in the same order on every rank: compare the lines in the sentence.",
        "Where shapes differ, pad them, or exchange the sizes first.",
        (
            'Over Gloo alone the same script may give a wrong number without a word; `backend="lockstep"` checks '
            "every call."
        ),
    ),
)
CROSSED_GROUPS = Finding(
    name="crossed-groups",
    title="Ranks wait for each other",
    seen=(
        "Followed from rank to rank, the waits come back to where they began: rank 0 waits for rank 1 in one "
        "operation, and rank 1 for rank 0 in another one. Nothing can end that."
    ),
    example="""\
stalled   5 s: ranks wait for each other: rank 0 for rank 1 in all_reduce(sum) of 4 float32 (train.py:13);
          rank 1 for rank 0 in all_reduce(sum) of 4 float32 (train.py:15)
""",
    why=(
        "Two groups are used in a different order on different ranks, a rank calls `barrier` while another one "
        "trains, or two ranks `recv` from each other before they `send`."
    ),
    what_to_do=(
        "Make the same calls in the same order on all ranks, with every group: compare the lines in the sentence.",
        "Exchange between two ranks with `batch_isend_irecv`, or let one of them send first.",
    ),
)
KILLED_FOR_MEMORY = Finding(
    name="killed-for-memory",
    title="A rank was killed because memory was short",
    seen=(
        "SIGKILL ended the rank, and the kernel's counter of kills for lack of memory went up. Where the control "
        "group's own counter went up, its limit was reached; otherwise the host had none left. The sentence says "
        "how much each rank held shortly before."
    ),
    example="""\
FAILED    rank 1, step 2, optimizer: killed by signal 9 (SIGKILL)
  last at /home/ada/train.py:32
    for x, y in step:
  why: the kernel killed it for lack of memory: its control group may use 2.1 GB (the host has 22.1 of 25.2 GB
       free); rank 1 held 1.68 GB, rank 0 0.22 GB
""",
    why=(
        "Each rank has its own copy of the model, of its optimizer, and of what the script loads; loader workers "
        "add to that."
    ),
    what_to_do=(
        "Use a smaller batch, fewer ranks or fewer loader workers.",
        ("`--strategy zero1` keeps one optimizer state for all ranks; `pipeline` and `model_parallel` cut the model."),
        "Load data lazily or from a memory map, so that ranks share the pages.",
        "In a container or a batch job, ask for more memory: the limit is the control group's.",
    ),
)
CRASH = Finding(
    name="crash",
    title="A rank has crashed in native code",
    seen=(
        "A signal of the processor ended it (SIGSEGV, SIGBUS, SIGFPE, SIGILL, or SIGABRT); Python's fault handler "
        "wrote the stack of that moment."
    ),
    example="""\
FAILED    rank 1, step 2, optimizer: killed by signal 11 (SIGSEGV)
  last at /home/ada/train.py:32
    for x, y in step:

  | Fatal Python error: Segmentation fault
  |
  | Current thread 0x00007fadaa41ab80 (most recent call first):
  |   File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  |   File "/home/ada/train.py", line 50 in <module>
""",
    why=(
        "A C or C++ extension has a bug, was built for another torch or another processor, or a memory-mapped "
        "file became shorter (SIGBUS)."
    ),
    what_to_do=(
        "Look at the first lines of the stack: the extension that they name is the one to update or to leave out.",
        "Run with `-n 1` and one thread: if it crashes there too, it is not about ranks.",
        "`lockstep doctor` names versions that do not fit together.",
    ),
)
STRAGGLER = Finding(
    name="straggler",
    title="A rank is slower than the others, step after step",
    seen=(
        "Over at least ten steps, twice in a row, one rank took more than 1.5 times as long as the others for a "
        "part of the step: data, forward and backward, optimizer, or the script around it."
    ),
    example="""\
slow      rank 1 takes 48 ms a step in forward and backward, the others 3 ms, and wait for it
""",
    why=(
        "Its cores are shared with another program, it is throttled, its data is farther away, or it does "
        "something that the others do not."
    ),
    what_to_do=(
        "See what else runs on its cores (`top`), and whether its control group throttles it (`cpu.stat`).",
        "In data: give its loader more workers, or put the samples on a local disk.",
        "In forward and backward, or in the script: look for what it does on this rank only.",
    ),
)
SHARED_CORE = Finding(
    name="shared-core",
    title="All ranks share one core",
    seen="The kernel says that all ranks may run on the same single core only, although there are more.",
    example="""\
note      the 2 ranks may use core 0 only, of 2, and take turns on it
""",
    why=(
        "`OMP_PROC_BIND`, `GOMP_CPU_AFFINITY`, `KMP_AFFINITY`, `taskset`, `mpirun` or a batch system bound the "
        "first process, and the ranks have inherited that; or the script calls `os.sched_setaffinity` with the "
        "same core on each rank."
    ),
    what_to_do=(
        (
            "Remove what binds: unset `OMP_PROC_BIND`, `GOMP_CPU_AFFINITY` and `KMP_AFFINITY`; start `mpirun` with "
            "`--bind-to none`."
        ),
        "In a batch job ask for as many cores as ranks (`--cpus-per-task`).",
    ),
)
CROWDED_CORES = Finding(
    name="crowded-cores",
    title="Far more threads than cores",
    seen="Ranks times threads is more than twice the number of usable cores.",
    example="""\
note      2 ranks x 9 threads on 2 cores wait for each other at every step; --threads 1 is probably faster
""",
    why="All of them compute at once, and each exchange waits for the one that gets its core last.",
    what_to_do=(
        "Start fewer ranks, or set `--threads`: the line says how many.",
        "For the same bits elsewhere keep `lanes=` and `threads=`: the number of ranks is free.",
    ),
)
STARVED_LOADER = Finding(
    name="starved-loader",
    title="The ranks wait for samples",
    seen="At the end of the run the parts of a step are compared: waiting for samples took a fifth of it or more.",
    example="""\
speed     430 samples/s; a step of 18.6 ms = data 12.9 + forward and backward 0.8 + exchange 4.6 + optimizer 0.3
advice    data 70%: more loader workers (num_workers=) would fetch while ranks compute
""",
    why="Reading and augmenting takes longer than computing, and happens before each step instead of beside it.",
    what_to_do=(
        "Let workers fetch while the ranks compute: `DataLoader(num_workers=2)`; the bits stay the same.",
        "Store what is decoded each time (`.npy`, a memory map), or make images smaller once.",
        "If cores are few, fewer ranks with one worker each may be faster.",
    ),
)
SHARED_DEVICE = Finding(
    name="shared-device",
    title="Several ranks compute on the same GPU",
    seen="A model was wrapped on `cuda:0` in a rank whose own GPU is another one, which is free.",
    example="""\
lockstep: rank 1: the model is on cuda:0, which local rank 0 uses too, while cuda:1 is free. Use .cuda() without
an index, or .to(f"cuda:{os.environ['LOCAL_RANK']}").
""",
    why=(
        'The script says `cuda:0`, or `torch.device("cuda", 0)`, or `.to(0)`. `.cuda()` without a number is '
        "right: lockstep sets the current device."
    ),
    what_to_do=(
        "Use `.cuda()` without a number, or `cuda:{os.environ['LOCAL_RANK']}`, or `run.device`.",
        'Load files with `map_location="cpu"`: a saved `cuda:0` comes back on `cuda:0`.',
    ),
)
FULL_DISK = Finding(
    name="full-disk",
    title="A disk or shared memory is full",
    seen=(
        "A write failed because there was no space (ENOSPC) or no quota (EDQUOT). What lockstep itself cannot "
        "write is named when it happens and again at the end, with exit code 1; training goes on."
    ),
    example="""\
FAILED    rank 0: OSError: [Errno 28] No space left on device: 'weights.pt'
  at /home/ada/train.py:5
""",
    why=(
        "States, logs or the script's files have filled the disk; `/dev/shm` is small in containers (64 MB in Docker)."
    ),
    what_to_do=(
        "Free some space, or name another place: `--log-dir`, `--states`, `TMPDIR`.",
        "Keep fewer states: `--keep 2`.",
        "In a container start with `--shm-size=2g` or `--ipc=host`.",
    ),
)
WRONG_INTERFACE = Finding(
    name="wrong-interface",
    title="The network interface that was named does not exist",
    seen="Gloo or NCCL was told to use an interface, and this machine has none of that name.",
    example="""\
FAILED    rank 0: RuntimeError: [enforce fail at .../gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find
          address for: eth7
  at /home/ada/train.py:2
    dist.init_process_group("gloo")
""",
    why=(
        "`GLOO_SOCKET_IFNAME` or `NCCL_SOCKET_IFNAME` comes from another machine's script: interfaces are called "
        "differently there."
    ),
    what_to_do=(
        "Unset `GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME`; ranks on one machine need neither.",
        "`ip -brief address` lists the interfaces of this machine.",
    ),
)
NAN_LOSS = Finding(
    name="nan-loss",
    title="The loss is not a finite number",
    seen=(
        "The lanes' losses meet in each step's exchange; the first one that is NaN or infinite is named with its "
        "step, lane and rank."
    ),
    example="""\
lockstep: the loss is nan in step 2: it comes from lane 2, on rank 1; the other lanes are finite.
""",
    why=(
        "A learning rate that is too high, a logarithm or a root of 0, a division by an empty count, a sample "
        "that is broken, or an overflow in half precision."
    ),
    what_to_do=(
        "Look at the samples of that lane in that step: the same command computes the same step again.",
        "Compute in `with torch.autograd.set_detect_anomaly(True):` to get the operation.",
        "Lower the learning rate, or clip: `run.clip_grad_norm_(model.parameters(), 1.0)`.",
    ),
)
REPLICAS_APART = Finding(
    name="replicas-apart",
    title="Replicas of a DistributedDataParallel model have come apart",
    seen=(
        "In a script without `lockstep.init`, the ranks of a node compare sums over the bits of the parameters that "
        "DistributedDataParallel holds: every 500 forwards in training where that costs less than 1 % of the time, and "
        "when the model is no longer used. `--check-every off` leaves it out."
    ),
    example="""\
lockstep: replicas of a DistributedDataParallel model have come apart: at its end, 'head.bias' is not the same on rank 1 as on rank 0.
""",
    why=(
        "DDP compares nothing after it was built. A parameter that was frozen then is never reduced; one that a rank did "
        "not use keeps that rank's gradient; a penalty outside `forward` reaches parameters that DDP takes for ready; or "
        "code behind `if rank == 0` wrote to the model."
    ),
    what_to_do=(
        "Build DistributedDataParallel again after freezing or unfreezing, and compute every loss inside its forward.",
        "Use `find_unused_parameters=True` where ranks use different parts of the model.",
        "If only rank 0 loaded other weights after the training, nothing is wrong.",
    ),
)

FINDINGS: dict[str, Finding] = {
    one.name: one
    for one in (
        MISSING_RANK,
        EARLY_LEAVER,
        STALLED_IN_DATA,
        STALLED_IN_SCRIPT,
        STOPPED_PROCESS,
        BUSY_RANK,
        MISMATCHED_COLLECTIVE,
        CROSSED_GROUPS,
        KILLED_FOR_MEMORY,
        CRASH,
        STRAGGLER,
        SHARED_CORE,
        CROWDED_CORES,
        STARVED_LOADER,
        SHARED_DEVICE,
        FULL_DISK,
        WRONG_INTERFACE,
        NAN_LOSS,
        REPLICAS_APART,
    )
}
"""By name."""
