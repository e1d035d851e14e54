"""The launcher's own lines: what starts, what was decided, how it ended. Text only; nothing here reads or writes.

Each line begins with a label of fixed width, so that they line up whenever they come.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.launcher.choices import Verbosity
from samebits.launcher.diagnosis.spent import Summary
from samebits.launcher.diagnosis.words import ranks_text
from samebits.launcher.recovery import Loss, Regroup
from samebits.launcher.request import LaunchRequest
from samebits.machine.processes import signal_name
from samebits.machine.visible import visible_lines
from samebits.protocol.arithmetic import arithmetic_text
from samebits.protocol.claims import BitsFacts, claims
from samebits.protocol.layout.mesh import LEAST_LANES, choose_mesh
from samebits.protocol.run_folder import RUNS

LABEL_WIDTH = 10
QUOTED = "  | "
"""Before the words of others, of which each may look like a line of ours."""
MOST_NODES_SHOWN = 8
LEAST_STEPS_TOLD, LEAST_STEPS_ADVISED = 50, 200
"""The first steps say little about the others."""
LEAST_S = 0.05
"""What took less is not worth a word."""


@dataclass(frozen=True)
class Line:
    """One line: a label and what it says."""

    label: str
    text: str
    aside: str = ""
    """Dim text behind it."""


def lines_of(block: str) -> list[Line]:
    """A block's rows, each with its label."""
    rows = visible_lines(block).split("\n")
    return [
        Line("", row) if row.startswith(QUOTED) else Line(row[:LABEL_WIDTH].rstrip(), row[LABEL_WIDTH:]) for row in rows
    ]


@dataclass(frozen=True)
class StartTimes:
    """The start-up's parts in seconds, each from the end of the one before."""

    command_s: float
    import_s: float
    fork_s: float

    @property
    def total_s(self) -> float:
        return self.command_s + self.import_s + self.fork_s


def opens_at_once(request: LaunchRequest) -> bool:
    """Whether the first line comes before lanes are decided: they never are, another node does so, or all is to be printed."""
    is_detailed = request.output.verbosity is Verbosity.DETAILED
    return is_detailed or not (request.entry.calls_init and request.nodes.place.is_one_node)


def opening_line(request: LaunchRequest, decided: Mapping[str, Any]) -> Line:
    """Ranks, devices, lanes as far as they are decided, the folder; with -v threads, and why."""
    replicas = (
        choose_mesh(request.computation.form, request.placement.ranks).copies if request.nodes.place.is_one_node else 0
    )
    devices = "cpu" if request.placement.device == "cpu" else _gpus(max(request.placement.ranks, replicas), request)
    inside = f" with {count_text(replicas, 'replica')}" if replicas else ""
    parts = [f"{count_text(request.placement.ranks, 'rank')}{inside} on {devices}"]
    if request.output.verbosity is Verbosity.DETAILED:
        each = " each" if max(request.placement.ranks, replicas) > 1 else ""
        why = f" ({request.placement.why})" if request.placement.why else ""
        most = (
            "up to " if request.placement.cores and request.placement.threads > 1 else ""
        )  # lanes decide, or the script
        parts.append(f"{most}{count_text(request.placement.threads, 'thread')}{each}{why}")
    text = ", ".join([*parts, *filter(None, [_lanes(decided)])])
    return Line("samebits", text, str(request.output.run_folder))


def branch_lines(request: LaunchRequest) -> list[Line]:
    """From which run it was branched, and which steps it passes over, where there is something to say."""
    parent, skipped = request.computation.course.parent, request.computation.course.skipped
    lines = [Line("branch", f"of {parent.text}")] if parent is not None else []
    return [*lines, *([Line("skips", f"the samples of {skipped.text}")] if skipped else [])]


def nodes_line(request: LaunchRequest, nodes: Sequence[str]) -> Line:
    """Who takes part, and which of it is here: `2 nodes with 4 ranks; ranks 2-3 here: node 0 (host a), node 1 (host b)`."""
    here = ranks_text(request.numbers)
    shown = ", ".join(nodes[:MOST_NODES_SHOWN]) + (", ..." if len(nodes) > MOST_NODES_SHOWN else "")
    return Line(
        "nodes", f"{count_text(len(nodes), 'node')} with {count_text(request.world_size, 'rank')}, {here} here: {shown}"
    )


def _gpus(count: int, request: LaunchRequest) -> str:
    """Their names; ranks that share some exchange through host memory, which is worth a word."""
    if not request.placement.shared_gpus:
        return device_names(count, request.placement.devices)
    return f"{device_names(request.placement.shared_gpus, request.placement.devices)}, shared through host memory"


def device_names(count: int, names: Sequence[str]) -> str:
    """`cuda:0 (NVIDIA H200)`, `cuda:0 to cuda:3 (NVIDIA A100)`, `cuda:0 (A100), cuda:1 (V100)`.

    Args:
        count: how many devices, counted from 0.
        names: in the order of their indices; unless there is one for each device, only numbers are shown.
    """
    numbers = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
    used = list(names[:count])
    if len(used) < count or not used:
        return numbers
    if len(set(used)) == 1:
        return f"{numbers} ({used[0]})"
    return ", ".join(f"cuda:{index} ({name})" for index, name in enumerate(used))


def start_line(times: StartTimes, spawns: bool) -> Line:
    """With -v: where the start-up time went."""
    start = "interpreters" if spawns else "fork"
    parts = f"command {times.command_s:.2f}, import {times.import_s:.2f}, {start} {times.fork_s:.2f}"
    return Line("started", f"in {times.total_s:.2f} s: {parts}")


def lanes_line(decided: Mapping[str, Any]) -> Line:
    """Lanes as rank 0 decided them, where the first line could not say so."""
    return Line("lanes", _lanes(decided))


def numerics_line(request: LaunchRequest, decided: Mapping[str, Any]) -> Line | None:
    """The arithmetic in which the ranks compute, where it is not the default, and with -v; decided.json has all its values."""
    arithmetic = decided.get("arithmetic")
    if not arithmetic:
        return None
    usual = (arithmetic.get("numerics"), arithmetic.get("precision") or "32", bool(arithmetic.get("allow")))
    if usual == ("exact", "32", False) and request.output.verbosity is not Verbosity.DETAILED:
        return None
    return Line("numerics", arithmetic_text(arithmetic))


def _lanes(decided: Mapping[str, Any]) -> str:
    """`4 lanes of 16, ddp`."""
    sizes = decided.get("lane_sizes") or [decided["batch_size"]] if decided.get("batch_size") else []
    of = f" of {min(sizes)}" if sizes else ""
    if len(set(sizes)) > 1:
        of += f" to {max(sizes)}"
    if not sizes and "batch_size" in decided:
        of = ", batches of batch_sampler"
    of += decided.get("lanes_note") or ""
    return ", ".join(filter(None, [count_text(decided.get("lanes"), "lane") + of, str(decided.get("strategy") or "")]))


def plain_line() -> Line:
    """Say that the ranks of a script without `samebits.init()` have met."""
    return Line("script", "plain torch.distributed, met through torchrun's environment")


def held_line(rank: int, process: int, after_s: float) -> Line:
    return Line(
        "stuck",
        f"rank {rank} (process {process}) did not end {after_s:.0f} s after SIGKILL: the kernel holds it, as a driver does whose "
        "GPU or disk is gone, and perhaps until the machine restarts. The run ends without it",
    )


def alone_line(ranks: int) -> Line:
    return Line(
        "warning",
        f"{ranks} ranks ran, but they never joined: each trained alone. "
        "Call samebits.init(), or torch.distributed.init_process_group(), or start with -n 1.",
    )


def still_alone_line(ranks: int, seconds: float) -> Line:
    """Warn that the ranks have not met so far."""
    return Line(
        "warning", f"{ranks} ranks have run for {seconds:.0f} s without joining each other: is each training alone?"
    )


@dataclass(frozen=True)
class Whence:
    """From where ranks that start again resume."""

    step: int | None = None
    """That of the newest state; None where they begin from the beginning."""
    in_memory: bool = False
    why: str = ""
    """Why they begin there, where that is known."""

    def num_again(self, loss: Loss) -> int:
        """How many steps are computed again, that in which the rank was lost included; 0 where that is not known."""
        return max((loss.step or 0) - (self.step or 0), 0)

    @property
    def place(self) -> str:
        """`after step 1200, kept in memory`."""
        if self.step is None:
            return f"from the beginning{f' ({self.why})' if self.why else ''}"
        return f"after step {self.step}, kept in memory" if self.in_memory else f"from state step-{self.step}"


def regroup_line(decision: Regroup, whence: Whence) -> Line:
    """Say which nodes come and go, and from where all ranks resume."""
    return Line("nodes", f"{decision.changes}; all ranks start again, {whence.place}")


@dataclass(frozen=True)
class StatesLeft:
    """From where a run that was stopped by a signal can resume."""

    saved: int | None
    """The step after which it was saved because of the signal; None when it was not."""
    newest: int | None
    """The step of the newest state; None when there is none."""
    waited_s: float
    """How long the ranks had time to save, if it was too short."""
    problem: str = ""
    """Why it could not be saved, if a rank failed at that."""

    @property
    def sentence(self) -> str:
        """`saved after step 1204: the same command resumes from there`."""
        if self.saved is not None:
            return f"saved after step {self.saved}: the same command resumes from there"
        why = f"not saved within {self.waited_s:g} s, so " if self.waited_s else ""
        why = f"not saved ({self.problem.rstrip('.')}), so " if self.problem else why
        if self.newest is None:
            return f"{why}there is no state yet: the same command begins anew"
        return f"{why}the last state is of step {self.newest}: the same command resumes from there"


def asked_line(number: int, grace_s: float) -> Line:
    """Say that the run is saved before it ends."""
    return Line(
        "stopping",
        f"by {signal_name(number)}: the run is saved between two steps, within {grace_s:g} s; a second signal ends it now",
    )


def stopped_line(number: int, seconds: float, folder: Path, left: StatesLeft | None) -> Line:
    """Say which signal ended the run, and when; `left`: of a run that saves by itself."""
    states = f" {left.sentence};" if left is not None else ""
    return Line("stopped", f"by {signal_name(number)} after {seconds:.1f} s;{states} logs in {folder}")


@dataclass(frozen=True)
class Seconds:
    """Where the time of a run went, all starts of its ranks together."""

    total: float
    steps: float = 0.0
    """Of the rank that had most."""
    samples: int = 0
    evaluation: float = 0.0
    end: float = 0.0
    """From the last step or evaluation to the end."""

    @property
    def rate(self) -> str:
        """`, 567 samples/s`: in the steps alone."""
        return f", {self.samples / self.steps:,.0f} samples/s" if self.steps and self.samples else ""

    @property
    def others(self) -> str:
        """`(start 21 s, end 3.8 s)`."""
        start = self.total - self.steps - self.evaluation - self.end
        parts = {"start": start, "evaluation": self.evaluation, "end": self.end}
        texts = [f"{name} {took:.{int(took < 10)}f} s" for name, took in parts.items() if took >= LEAST_S]
        return f"({', '.join(texts)})" if texts else ""


def end_lines(
    request: LaunchRequest, result: Mapping[str, Any], decided: Mapping[str, Any], told: Summary, seconds: Seconds
) -> list[Line]:
    """How a run ended well; a plain script leaves no bits and no steps.

    Args:
        request: what was run.
        result: what rank 0 left in result.json; empty for a plain script.
        decided: what it left in decided.json.
        told: what the steps went into.
        seconds: where the time went.
    """
    earlier = (
        f", after {count_text(result['earlier_epochs'], 'epoch')} of earlier starts"
        if result.get("earlier_epochs")
        else ""
    )
    made = ", ".join(filter(None, (count_text(result.get("epochs"), "epoch"), count_text(result.get("steps"), "step"))))
    each = ", every sample once per epoch" if "each once" in str(result.get("samples")) else ""
    done = Line("done", f"{seconds.total:.1f} s{earlier}")
    if made:
        has_steps = seconds.steps > 0
        text = f"{made} in {seconds.steps if has_steps else seconds.total:.1f} s{earlier}{seconds.rate}{each}"
        done = Line("done", text, seconds.others if has_steps else "")
    lines = [done]
    is_detailed = request.output.verbosity is Verbosity.DETAILED
    if result.get("bits"):
        facts = BitsFacts.of({**result, **_proofs(request, result, decided)}, decided)
        lines += [Line(*one) for one in claims(facts, is_detailed=is_detailed)]
    if not decided and request.computation.arithmetic.numerics == "portable":
        lines.append(Line("numerics", "nothing was checked: the script calls no samebits.init"))
    if told.shares:
        step = f"{told.step_s * 1e3:.1f} ms a step: " if is_detailed else ""
        lines.append(Line("time", step + " · ".join(f"{name} {share}%" for name, share in told.shares.items())))
    if told.slowest and is_long(result):
        lines.append(Line("slowest", told.slowest))
    elif told.advice and is_long(result, LEAST_STEPS_ADVISED):
        lines.append(Line("advice", told.advice))
    folder = request.output.run_folder
    named = f" {shlex.quote(str(folder))}" if folder.parent != Path(RUNS) else ""
    return [*lines, Line("details", f"samebits report{named}")]


def _proofs(request: LaunchRequest, result: Mapping[str, Any], decided: Mapping[str, Any]) -> dict[str, str]:
    """What was proved before, and the command that would."""
    proved, to_prove = request.computation.proved, request.computation.to_prove
    lanes = int(result.get("lanes") or 1)
    # Where nobody names the lanes, more ranks than verify has by itself make more of them.
    given = f"--lanes {lanes} " if lanes > LEAST_LANES and not decided.get("lanes_named", True) else ""
    said = proved.of(result) if proved is not None else ""
    return {"proved": said, "to_prove": f"samebits verify {given}{to_prove}" if to_prove else ""}


def done_here_line(numbers: Iterable[int], first_node: str, seconds: float) -> Line:
    """How a run ended well, on a node other than the first, which says the rest."""
    return Line("done", f"{ranks_text(numbers)} here, in {seconds:.1f} s; {first_node} says the rest")


def is_long(result: Mapping[str, Any], least: int = LEAST_STEPS_TOLD) -> bool:
    """Whether a run had enough steps to say something of where their time went."""
    return int(result.get("steps") or 0) >= least


def count_text(number: int | None, noun: str) -> str:
    if not number:
        return ""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rank_lines(pids: Mapping[int, int], logs: Mapping[int, Path]) -> list[Line]:
    """With -v: each rank's process and log."""
    return [Line(f"rank {rank}", f"pid {pids[rank]}, log {logs[rank]}") for rank in sorted(pids)]
