"""What happens to a job over nodes, and what is measured of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.nodes.contestants import Contestant
from benchmarks.nodes.trial import Trial
from tests.support.hosts import Host

PATIENCE_S = 120.0
CUT_S = 5.0
SILENT_S = 60.0
"""After a link is cut for good, until nobody is expected to say anything; Gloo's own limit is 30 minutes."""
TO_END_S = 10.0
WIDE = ("--steps", "60", "--numbers", "262144")
"""As many all_reduces of 1 MiB."""


@dataclass(frozen=True)
class Measured:
    """One of a case's rounds."""

    seconds: float | None
    """None: it did not come to that."""
    told: str = ""


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Args:
        name: what it is called on the command line.
        title: what is measured.
        measure: runs it once.
        rounds: how often, unless the command line says.
        is_relayed: whether its network can delay and lose packets.
    """

    name: str
    title: str
    measure: Callable[[Contestant, Sequence[Host]], Measured]
    rounds: int = 3
    is_relayed: bool = False


def start(contestant: Contestant, hosts: Sequence[Host]) -> Measured:
    with Trial(contestant, hosts) as job:
        job.start(0, 1)
        job.trains(4, steps=1)
        return Measured(max(rank.steps[0] for rank in job.of(4)) - job.began_s)


def end(contestant: Contestant, hosts: Sequence[Host]) -> Measured:
    with Trial(contestant, hosts) as job:
        job.start(0, 1)
        job.trains(4)
        job.stop()
        at_s = time.monotonic()
        outcome = job.outcome(PATIENCE_S)
        return Measured(time.monotonic() - at_s, outcome)


def rank_killed(contestant: Contestant, hosts: Sequence[Host]) -> Measured:
    with Trial(contestant, hosts) as job:
        job.start(0, 1)
        job.trains(4)
        victim = next(rank for rank in job.of(4) if rank.host == hosts[1].name)
        at_s = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        again_s = job.first_of_new_group(4, at_s, PATIENCE_S)
        new = [rank for rank in job.ranks() if rank.pid not in {old.pid for old in job.of(4) if old.steps[0] < at_s}]
        return Measured(again_s, f"{len(new) // 4} starts" if again_s else _last_words(job))


def node_killed(contestant: Contestant, hosts: Sequence[Host]) -> Measured:
    return _without_the_second(contestant, hosts, hosts[1].kill)


def node_without_power(contestant: Contestant, hosts: Sequence[Host]) -> Measured:
    def power_off() -> None:
        hosts[1].link.cut()
        hosts[1].kill()

    return _without_the_second(contestant, hosts, power_off)


def _without_the_second(contestant: Contestant, hosts: Sequence[Host], fault: Callable[[], None]) -> Measured:
    with Trial(contestant, hosts, nnodes="1:2") as job:
        job.start(0, 1)
        job.trains(4)
        at_s = time.monotonic()
        fault()
        again_s = job.first_of_new_group(2, at_s, PATIENCE_S)
        return Measured(again_s, "" if again_s else _last_words(job))


def node_joins(contestant: Contestant, hosts: Sequence[Host]) -> Measured:
    """Seconds without a step; told is when all train, from the command on the second node."""
    with Trial(contestant, hosts, nnodes="1:2") as job:
        job.start(0)
        job.trains(2)
        at_s = time.monotonic()
        job.start(1)
        again_s = job.first_of_new_group(4, at_s, PATIENCE_S)
        if again_s is None:
            return Measured(None, f"{job.outcome(1.0)}; {_last_words(job)}")
        before_s = max(rank.steps[-1] for rank in job.of(2))
        return Measured(at_s + again_s - before_s, f"all train after {again_s:.1f} s")


def cut_for_a_while(contestant: Contestant, hosts: Sequence[Host]) -> Measured:
    """Seconds from the link's return to the next all_reduce."""
    with Trial(contestant, hosts) as job:
        job.start(0, 1)
        job.trains(4)
        old = {rank.pid for rank in job.of(4)}
        hosts[1].link.cut()
        time.sleep(CUT_S)
        hosts[1].link.restore()
        at_s = time.monotonic()
        if not job.wait(lambda: all(rank.steps[-1] > at_s for rank in job.of(4)), PATIENCE_S):
            return Measured(None, _last_words(job))
        after = [min(step for step in rank.steps if step > at_s) - at_s for rank in job.of(4)]
        same = {rank.pid for rank in job.of(4)} == old
        return Measured(max(after), "the same processes" if same else "other processes")


def cut_for_good(contestant: Contestant, hosts: Sequence[Host]) -> Measured:
    """Seconds until somebody says something."""
    with Trial(contestant, hosts) as job:
        job.start(0, 1)
        job.trains(4)
        before = [len(job.said(node)) for node in (0, 1)]
        at_s = time.monotonic()
        hosts[1].link.cut()
        if not job.wait(lambda: any(len(job.said(node)) > before[node] for node in (0, 1)), SILENT_S):
            return Measured(None, f"nothing is said within {SILENT_S:.0f} s")
        said_s = time.monotonic() - at_s
        outcome = job.outcome(TO_END_S)
        news = [
            f"node {node}: {line}" for node in (0, 1) for line in job.said(node)[before[node] :].splitlines() if line
        ]
        return Measured(said_s, f"{outcome}; {' / '.join(news[:4])}"[:600])


def undisturbed(contestant: Contestant, hosts: Sequence[Host]) -> Measured:
    return _steps(contestant, hosts, 0.0, 0.0)


def lossy(contestant: Contestant, hosts: Sequence[Host]) -> Measured:
    return _steps(contestant, hosts, 0.0, 0.01)


def far(contestant: Contestant, hosts: Sequence[Host]) -> Measured:
    return _steps(contestant, hosts, 0.01, 0.0)


def _steps(contestant: Contestant, hosts: Sequence[Host], delay_s: float, loss: float) -> Measured:
    """Seconds for one all_reduce of 1 MiB, and the bits of all."""
    with Trial(contestant, hosts, arguments=WIDE) as job:
        hosts[1].link.disturb(delay_s, loss)
        job.start(0, 1)
        outcome = job.outcome(PATIENCE_S)
        done = [rank for rank in job.ranks() if rank.bits]
        if len(done) < 4:
            return Measured(None, f"{outcome}; {_last_words(job)}")
        gaps = [b - a for rank in done for a, b in zip(rank.steps, rank.steps[1:], strict=False)]
        return Measured(median(gaps), f"bits {'/'.join(sorted({rank.bits[:8] for rank in done}))}")


def sockets(contestant: Contestant, hosts: Sequence[Host]) -> Measured:
    """Listening sockets, Gloo's too; seconds has nothing."""
    with Trial(contestant, hosts) as job:
        job.start(0, 1)
        job.trains(4)
        found = {host.name: sorted(address.rpartition(":")[0] for address in host.listening()) for host in hosts}
        everywhere = sum(address in ("*", "0.0.0.0", "[::]") for each in found.values() for address in each)
        shown = "; ".join(f"{name}: {', '.join(each)}" for name, each in found.items())
        return Measured(None, f"{everywhere} on every address ({shown})")


def _last_words(job: Trial) -> str:
    lines = [f"node {node}: {line}" for node in job.agents for line in job.said(node).splitlines() if "Error" in line]
    return " / ".join(lines[-3:])[:600]


CASES = (
    Case("start", "command to first all_reduce", start, 7),
    Case("rank-killed", "rank killed to first all_reduce of the new group", rank_killed, 5),
    Case("node-killed", "node killed to first all_reduce of the rest (1:2)", node_killed),
    Case("power", "node without power to first all_reduce of the rest (1:2)", node_without_power),
    Case("join", "a node joins: time without a step (1:2)", node_joins),
    Case("cut", f"link cut for {CUT_S:.0f} s: from its return to the next all_reduce", cut_for_a_while),
    Case("cut-for-good", "link cut for good: until somebody says so", cut_for_good),
    Case("sockets", "listening sockets", sockets, 1),
    Case("undisturbed", "all_reduce of 1 MiB", undisturbed, 3, is_relayed=True),
    Case("loss", "all_reduce of 1 MiB, 1 % of packets lost", lossy, 3, is_relayed=True),
    Case("delay", "all_reduce of 1 MiB, 10 ms later in each direction", far, 3, is_relayed=True),
    Case("end", "script's end to the last agent's end", end),
)
