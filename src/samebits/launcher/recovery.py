"""What the launcher does when a rank was lost: start all ranks again, with fewer where that helps, or stop. A pure decision
with its reason. What it does when a node comes or leaves is `supervise.node_changes`'s.

    how all ranks ended      -> blame.verdict_of
    + where the culprit was  -> Loss: what happened, at which step
    + what was requested, and the losses so far -> decide: `RestartAll` or `Stop`

Machines fail, and so does memory: a killed rank, a crash, a lost loader worker, a flipped bit are worth another try. A
script that raises or calls `sys.exit` would do it again. So does a loss that comes to the same rank twice at the same step;
but where the kernel may have run out of memory, one rank less may help, and a SIGKILL that somebody sent while no memory was
short says nothing about the step. A script that never calls `samebits.init` is treated as torchrun treats it: any failure
restarts it, and only if asked to.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samebits.launcher.blame import RankEnd, Verdict
from samebits.launcher.choices import NO_LIMIT, OnDamage, Recover, Recovery
from samebits.launcher.diagnosis.words import step_text
from samebits.machine.processes import signal_name
from samebits.protocol.journal.failure import FailureKind
from samebits.protocol.journal.ring import Record

DEFAULT_RESTARTS = 3
"""How often the ranks of a script with `samebits.init` start again, unless --max-restarts says otherwise."""


@dataclass(frozen=True)
class Loss:
    """Why one start of the ranks ended."""

    rank: int
    what: str
    """What happened to the rank, for people: `was killed by signal 9 (SIGKILL)`. Not the rank's doing, so comparable."""
    step: int | None
    """The rank's step; 0 before the first; None when the script keeps no journal."""
    place: str = ""
    """The last line of the script that is known, `train.py:31`; of damage, until when all was well."""
    who: str = ""
    """Who, if not one rank: `node 1 (host b)`."""
    is_in_step: bool = True
    """Whether the step was under way; else it was the last one."""

    def is_like(self, other: Loss) -> bool:
        """Whether the same happened to the same rank at the same step: its samples are the same again."""
        return self.step is not None and (self.what, self.step, self.rank) == (other.what, other.step, other.rank)

    @property
    def sentence(self) -> str:
        """`rank 2 was killed by signal 9 (SIGKILL) in step 1204 (1203 done, train.py:31)`."""
        if self.step and self.is_in_step and self.place:
            return f"{self._without_place.removesuffix(')')}, {self.place})"
        return f"{self._without_place}{f' ({self.place})' if self.place else ''}"

    @property
    def sentence_again(self) -> str:
        """`rank 2 was killed by signal 9 (SIGKILL) in step 1204 (1203 done) again`."""
        return f"{self._without_place} again"

    @property
    def _without_place(self) -> str:
        when = "" if self.step is None else f" {step_text(self.step, is_in_step=self.is_in_step)}"
        return f"{self.who or f'rank {self.rank}'} {self.what}{when}"


@dataclass(frozen=True)
class Stop:
    """The run ends as it is."""

    reason: str = ""
    """Why nothing starts again, where a user might expect it; else empty."""
    is_script: bool = False
    """Whether it shows that the script did what looked like damage."""


@dataclass(frozen=True)
class RestartAll:
    """All ranks are started again."""

    loss: Loss
    number: int
    """Counted from 1."""
    most: int
    ranks: int = 0
    """How many, if they are fewer than before; else 0."""
    given_up: int = 1
    """How many fewer, if they are."""

    @property
    def counted(self) -> str:
        """`restart 1 of 3`; without a limit `restart 1`."""
        return f"restart {self.number}" + (f" of {self.most}" if self.most < NO_LIMIT else "")


@dataclass(frozen=True)
class Regroup:
    """All ranks are started again, on other nodes than before; nobody failed, so it is not counted."""

    changes: str
    """`node 1 (host b) is gone, host c joins`."""


Decision = Stop | RestartAll | Regroup


@dataclass(frozen=True)
class Scene:
    """One start of the ranks, when all have ended."""

    verdict: Verdict
    uses_samebits: bool
    """Whether the script called `samebits.init`."""
    last: Record | None
    """What the culprit did last, from its journal; None when it kept none."""
    loss: Loss | None = None
    """The same in words, where it is known better than by `last`."""
    can_start: bool = True
    """Whether there is a nursery that starts ranks."""
    ranks: int = 1
    can_shrink: bool = False
    """Whether fewer ranks would compute the same: the lanes are known, and the mesh names no number of ranks."""
    even_lanes: int = 0
    """How many lanes there are, if each rank must have as many of them as the others; else 0."""


def decide(scene: Scene, recovery: Recovery, history: Sequence[Loss]) -> Decision:
    """Decide what follows.

    Args:
        scene: how the ranks ended.
        recovery: what was requested.
        history: the losses after which ranks were started again, oldest first.
    """
    # A start that ends before its script comes to samebits.init belongs to a run that had come there.
    scene = replace(scene, uses_samebits=scene.uses_samebits or any(loss.step is not None for loss in history))
    end = scene.verdict.culprit
    most = most_restarts(recovery, uses_samebits=scene.uses_samebits)
    if end is None or not scene.can_start or not _is_worth_another_try(scene, end, recovery):
        return Stop()
    if not most:
        return Stop(_why_none(scene, end, recovery))
    loss = scene.loss or loss_of(end, scene.last, uses_samebits=scene.uses_samebits)
    alike = _comparable(end, recovery, history)
    ranks = _fewer_ranks(scene, end, loss, recovery, alike)
    if _comes_back(loss, alike) and not ranks:
        reason = f"{loss.sentence_again}; the same failure at the same step would come back, so the run stops"
        return Stop(reason, is_script=_is_damage(end))
    if len(history) >= most:
        return Stop(f"{loss.sentence}; {'the restart is' if most == 1 else f'all {most} restarts are'} used up")
    return RestartAll(loss, len(history) + 1, most, ranks, scene.ranks - ranks if ranks else 1)


def _comparable(end: RankEnd, recovery: Recovery, history: Sequence[Loss]) -> Sequence[Loss]:
    """The losses that this one may repeat: none, if somebody killed the rank who does not know its step, or on purpose (the demo)."""
    is_by_others = end.is_from_outside or recovery.forgives_kills
    return [] if is_by_others and end.signal == signal.SIGKILL else history


def _why_none(scene: Scene, end: RankEnd, recovery: Recovery) -> str:
    """Why nothing starts again although the user requested fewer ranks; else empty."""
    if not recovery.shrinks or recovery.max_restarts is not None:
        return ""
    loss = loss_of(end, scene.last, uses_samebits=scene.uses_samebits)
    return f"{loss.sentence}; a script without samebits.init starts again only with --max-restarts"


def _fewer_ranks(scene: Scene, end: RankEnd, loss: Loss, recovery: Recovery, history: Sequence[Loss]) -> int:
    """With how many ranks to resume, if with fewer; 0 with as many.

    With `--shrink` each loss takes one, or as many as leave ranks with equally many lanes where they need that. Without, one is given up that was killed (SIGKILL: perhaps for lack of memory), and
    killed again before it came further.
    """
    again = _comes_back(loss, history)
    if not scene.can_shrink or scene.ranks == 1 or (again and end.signal != signal.SIGKILL):
        return 0
    at_once = again or (
        bool(history) and loss.step == 0 and (loss.what, loss.rank) == (history[-1].what, history[-1].rank)
    )
    is_given_up = recovery.shrinks or (at_once and end.signal == signal.SIGKILL)
    fewer = (ranks for ranks in range(scene.ranks - 1, 0, -1) if scene.even_lanes % ranks == 0)
    return next(fewer) if is_given_up else 0


def _comes_back(loss: Loss, history: Sequence[Loss]) -> bool:
    """Whether the same has happened before at this step; before the first step, right before: else ranks have come further."""
    return any(loss.is_like(other) for other in (history if loss.step else history[-1:]))


def most_restarts(recovery: Recovery, *, uses_samebits: bool) -> int:
    """How often all ranks may start again."""
    if recovery.recover is Recover.OFF:
        return 0
    if recovery.max_restarts is not None:
        return recovery.max_restarts
    return DEFAULT_RESTARTS if uses_samebits else 0


def _is_damage(end: RankEnd) -> bool:
    return end.failure is not None and end.failure.kind is FailureKind.DAMAGE


def _is_worth_another_try(scene: Scene, end: RankEnd, recovery: Recovery) -> bool:
    kind = end.failure.kind if end.failure is not None else None
    if not scene.uses_samebits:
        return kind is not FailureKind.USAGE
    if kind is FailureKind.DAMAGE:
        return recovery.on_damage is OnDamage.RESTART
    if kind is not None:
        return kind is FailureKind.WORKER
    return not end.left


def may_start_again(end: RankEnd, loss: Loss, recovery: Recovery, history: Sequence[Loss]) -> bool:
    """Whether a rank that ended while others run is worth another start.

    Args:
        end: how it ended; its script uses samebits.
        loss: the same, in words.
        recovery: what was requested.
        history: the losses after which ranks were started again, oldest first.
    """
    if len(history) >= most_restarts(recovery, uses_samebits=True):
        return False
    kind = end.failure.kind if end.failure is not None else None
    if kind is not FailureKind.WORKER and (kind is not None or end.left or not end.code):
        return False
    return not _comes_back(loss, _comparable(end, recovery, history))


def loss_of(end: RankEnd, last: Record | None, *, uses_samebits: bool) -> Loss:
    """What happened to a rank, and where.

    Args:
        end: how it ended.
        last: what it did last, from its journal; None when it kept none.
        uses_samebits: whether the script called `samebits.init`.
    """
    failure = end.failure
    step = (last.step if last is not None else 0) if uses_samebits else None
    is_in_step = last is not None and last.is_in_step
    if failure is not None and failure.kind is FailureKind.DAMAGE:
        return Loss(end.rank, failure.error, step, failure.fix, is_in_step=is_in_step)
    file, line = (failure.file, failure.line) if failure is not None else ("", 0)
    if not file and last is not None:
        file, line = last.file, last.line
    return Loss(end.rank, _what(end), step, f"{Path(file).name}:{line}" if file else "", is_in_step=is_in_step)


def _what(end: RankEnd) -> str:
    if end.failure is not None:
        if end.failure.kind is not FailureKind.WORKER:
            return f"failed with {end.failure.error}"
        sample, place = end.failure.sample, end.failure.sample_place
        at = f" at sample {sample} of the data set" if sample is not None else ""
        return f"lost a loader worker{at}{f' ({place})' if place else ''}"
    return f"was killed by {signal_name(end.signal)}" if end.signal else f"ended with exit code {end.code}"
