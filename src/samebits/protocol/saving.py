"""Where and when a run saves its state: schedules, the folders of states and snapshots, who may use them. Pure but for the claim."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.machine.visible import visible
from samebits.protocol.run_folder import STATES, RunFolder, make_base, make_own, runs_folder
from samebits.protocol.url import below, check_shared

_STEPS = re.compile(r"([1-9][0-9]{0,14}) ?steps?")


def parse_steps(text: Any) -> int | None:
    """The number, at least 1; None for anything else, a number that is no text too."""
    found = _STEPS.fullmatch(text) if isinstance(text, str) else None
    return int(found[1]) if found else None


_AT = re.compile(r"at ([0-9]{1,15}(?:,[0-9]{1,15})*)")
_TIME = re.compile(r"([1-9][0-9]{0,14}) ?(s|min|h)")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Schedule:
    """`500steps`, `10min` or `epoch`."""

    steps: int = 0
    seconds: float = 0.0
    epoch: bool = False
    at: frozenset[int] = frozenset()
    """Behind these steps only, as an audit wants it: `at 40,80`."""

    @classmethod
    def parse(cls, text: Any, option: str = "save_every=") -> Schedule:
        """Parse the value of `option`.

        Raises:
            UsageError: for anything else.
        """
        if text == "epoch":
            return cls(epoch=True)
        if steps := parse_steps(text):
            return cls(steps=steps)
        if isinstance(text, str) and (listed := _AT.fullmatch(text)):
            return cls(at=frozenset(map(int, listed[1].split(","))))
        if isinstance(text, str) and (found := _TIME.fullmatch(text)):
            return cls(seconds=int(found[1]) * _SECONDS[found[2]])
        raise UsageError(f"{option}{text!r} cannot be read.", "Write 500steps, 10min or epoch.")

    def is_due(self, step: int, seconds: float, *, ends_epoch: bool) -> bool:
        """Whether to save after `step`, `seconds` after the last save."""
        if self.epoch:
            return ends_epoch
        if self.at:
            return step in self.at
        return step % self.steps == 0 if self.steps else seconds >= self.seconds


OFF = "off"

MOST_STEPS = 50
"""Damage is found within this many steps."""
LEAST_STEPS = 5
STEP_NS = 100_000
"""What comparing may cost per step: 0.5 % of a step of 20 ms."""
BYTES_PER_NS = 2
"""As measured after a step, with cold caches and another rank that sums at the same time."""
TENSOR_NS = 50_000
"""What a tensor costs besides its bytes, where it is summed by itself."""


def parse_checks(text: Any, option: str = "check_every=") -> int:
    """Parse the value of `option`: after how many steps ranks compare; 0 for `off`.

    Raises:
        UsageError: for anything else.
    """
    if text == OFF:
        return 0
    if steps := parse_steps(text):
        return steps
    raise UsageError(f"{option}{text!r} cannot be read.", "Write 50steps or off.")


def chosen_steps(num_bytes: int, num_tensors: int) -> int:
    """After how many steps ranks compare this much; the least number whose cost per step is below `STEP_NS`, in bounds."""
    cost_ns = num_bytes // BYTES_PER_NS + num_tensors * TENSOR_NS
    return min(max(-(-cost_ns // STEP_NS), LEAST_STEPS), MOST_STEPS)


MOST_BYTES = 200
"""Of a name: a file system takes 255, and names of states and logs follow."""
_held: list[int] = []
"""Descriptors of locks, open as long as this process lives; ranks do not inherit them."""


def check_name(name: Any, option: str = "--name") -> None:
    """Raise `UsageError` for what cannot name a folder, or would be hidden where folders are listed."""
    if not isinstance(name, str) or not name.strip() or name[0] == "." or "/" in name or visible(name) != name:
        raise UsageError(
            f"{option} must be a folder's name without a slash, a control character or a dot in front, but is {name!r}.",
            f'Try {option}"first-run".' if option.endswith("=") else f"Try {option} first-run.",
        )
    if len(os.fsencode(name)) > MOST_BYTES:
        raise UsageError(f"{option} is longer than {MOST_BYTES} bytes.", "Choose a shorter name.")


def claim(place: Path, *, is_first: bool = True) -> None:
    """Make or find the folder `place`, and keep other starts of the run out of it until this process ends.

    Args:
        place: the folder.
        is_first: whether this is the run's first node. The others, who may see the same disk, leave the claim to it.

    Raises:
        UsageError: when another start of the run is under way, or the folder is something else.
    """
    try:
        make_base(place.parent)
        make_own(place)
        if RunFolder(place).plan.exists():
            raise UsageError(
                f"{place} is the run folder of one start, without states of its own.",
                "Choose another name, or give --name only together with --save-every.",
            )
        make_own(place / STATES)
        lock = os.open(place / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UsageError(f"The run folder {place} cannot be used: {error.strerror}.", _fix_for(error)) from None
    if not is_first:
        os.close(lock)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        problem = f"The run {place.name} is already running."
        raise UsageError(problem, "Wait for it, stop it, or choose another name.") from None
    _held.append(lock)


def _fix_for(error: OSError) -> str:
    """A name can be taken or too long; of everything else another one would have as well."""
    if isinstance(error, FileExistsError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EPERM):
        return "Choose another name."
    return "Check the folders above it, their permissions and the disk."


def let_go() -> None:
    """Give up the places that this process has claimed."""
    while _held:
        os.close(_held.pop())


NEVER = f"{1 << 40}steps"
"""A schedule of more steps than any run has: a run that has a place for states, and saves none but when it is stopped."""
KEPT = 3
RESUME_NONFINITE = "--resume-nonfinite"


@dataclass(frozen=True)
class Saving:
    """Where and when a run saves its state by itself."""

    folder: str
    """An absolute path: the states of all starts of the run."""
    every: str
    """What `Schedule.parse` reads; empty where a branch has a place for states, and the script may say how often it saves."""
    keep: int | None = None
    """How many states stay; None where the command line leaves it to the script."""
    url: str = ""
    """Where each state is copied to, and looked for at the first start; empty: nowhere, or where the script says."""

    @property
    def name(self) -> str:
        return Path(self.folder).parent.name

    @property
    def kept(self) -> int:
        return KEPT if self.keep is None else self.keep


@dataclass(frozen=True)
class SaidInScript:
    """The arguments of `samebits.init` that are about states, as they were given."""

    name: Any = None
    save_every: Any = None
    keep: Any = KEPT
    states: Any = None

    @property
    def unused(self) -> str:
        """A note about states without `save_every`, in a sentence; empty when nothing is."""
        given = [
            word for word, is_given in (("name=", self.name is not None), ("keep=", self.keep != KEPT)) if is_given
        ]
        if not given or self.save_every is not None:
            return ""
        return f'{" and ".join(given)} say nothing without save_every=: no state is saved by itself. Add save_every="10min".'

    def saving(self, record: Saving | None, variables: Mapping[str, str]) -> Saving | None:
        """What holds for the run; None where nobody wants states.

        Args:
            record: the options of the command line. It beats the script, option by option.
            variables: of the environment.

        Raises:
            UsageError: for what cannot be.
        """
        if (every := self._every(record)) is None:
            return None
        if type(self.keep) is not int or self.keep < 1:
            problem = f"`keep` must be a whole number of at least 1, but is {self.keep!r}."
            raise UsageError(problem, f"Leave it out to keep {KEPT}.")
        folder = Path(runs_folder(variables), str(self.name), STATES).absolute()
        mine = replace(record or Saving(str(folder), ""), every=every)
        if mine.keep is None:
            mine = replace(mine, keep=self.keep)
        if self.states is not None and not mine.url:
            check_shared(self.states, "states=")
            mine = replace(mine, url=below(self.states, mine.name))
        return mine

    def _every(self, record: Saving | None) -> str | None:
        """How often; None where nobody wants states."""
        if record is not None and record.every:
            return record.every
        if self.save_every is None:
            if self.states is not None:
                raise UsageError("states= is about the states of save_every=.", "Give both, or leave it out.")
            return None if record is None else NEVER
        if record is None:
            if self.name is None:
                problem = "save_every= needs a name under which a later start finds the states."
                raise UsageError(problem, 'Add name="exp1".')
            check_name(self.name, "name=")
        Schedule.parse(self.save_every)
        return str(self.save_every)


_STATE = re.compile(r"step-(\d{8,})")


def state_name(step: int) -> str:
    """The name of the state after `step`."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step after which the state `name` was saved; None when that is no name of a state."""
    found = _STATE.fullmatch(name)
    return int(found[1]) if found else None


def newest_step(place: Path) -> int | None:
    """The step of the newest state below `place`, by its name only; None when there is none."""
    names = [path.name for path in place.iterdir()] if place.is_dir() else []
    return max((step for name in names if (step := step_of(name)) is not None), default=None)


def spread(steps: Sequence[int], keep: int, others: int) -> list[int]:
    """Of all steps the newest `keep` (at least one), and at most `others` older ones, as evenly as is possible.

    Of too many, the one goes whose neighbours are closest together, the oldest of several; never the first.

    Invariant: what came out goes in again with the next step. Of steps that come at equal distances three others or more lie
    nowhere twice as far apart as they would if they were spread evenly.
    """
    older, newest = steps[:-keep], steps[-keep:]
    if not others or not older:
        return list(newest)
    line: list[int] = []
    for step in (*older, newest[0]):
        line.append(step)
        if len(line) > others + 1:
            inner = range(1, len(line) - 1)
            del line[min(inner, key=lambda place: line[place + 1] - line[place - 1])]
    return [*line[:-1], *newest]


SNAPSHOTS_KEPT = "samebits-kept-{}-{}"
"""The folder's name in shared memory, by the launcher's process and a number; its launcher holds a lock on it."""


@dataclass(frozen=True)
class Keeping:
    is_on: bool = True
    steps: int = 0
    """Every so many steps; 0: as often as costs one hundredth of the time."""

    @classmethod
    def parse(cls, text: str) -> Keeping:
        """Read `auto`, `off` or `20steps`.

        Raises:
            UsageError: for anything else.
        """
        if text in ("auto", "off"):
            return cls(is_on=text == "auto")
        if steps := parse_steps(text):
            return cls(steps=steps)
        raise UsageError(f"--snapshots {text!r} cannot be read.", "Write auto, off or 20steps.")


@dataclass(frozen=True)
class SnapshotPlace:
    """Where the ranks of one run keep their snapshots."""

    folder: str
    """An absolute path in shared memory."""
    steps: int = 0
    """As in `Keeping`."""


def kept_in(folder: Path, number: int) -> Path:
    """Where the `number`-th run of a script (`samebits.init`) keeps its snapshots."""
    return folder / f"run-{number}"


def newest_kept(folder: Path) -> int | None:
    """The step of the newest snapshot of the last run below `folder`, by its name; None where there is none."""
    number = 1
    while kept_in(folder, number + 1).is_dir():
        number += 1
    return newest_step(kept_in(folder, number))
