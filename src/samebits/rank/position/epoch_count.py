"""Which epochs of `run.epochs` are done, and so where a resumed run continues. No torch, no exchange."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from samebits.errors import UsageError


@dataclass
class EpochCount:
    """The position in the script's loops over epochs. A script may have several `run.epochs`, one after the other."""

    loop: int = 0
    """Calls of `run.epochs` that have begun."""
    next: int = 0
    """The epoch that the current loop yields next."""
    in_body: bool = False
    calls: int = 0
    """Calls of `run.steps` in the current body."""
    calls_outside: int = 0
    """Calls of `run.steps` outside of `run.epochs`, in the whole script."""
    trained: bool = False
    """Whether `run.steps` was finished or left in the current body."""
    saved: bool = False
    """Whether a state was saved in the current body after training."""
    resume_loop: int = 0
    """The loop in which the loaded state was saved; the ones before it yield nothing."""
    resume_next: int = 0
    loaded: bool = False
    """Whether a state was loaded in the current body."""

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """The epochs that are left of `num_epochs`."""
        self.loop += 1
        self.next = self._first(num_epochs)
        while self.next < num_epochs:
            epoch = self.next
            self.in_body, self.trained, self.saved, self.loaded, self.calls = True, False, False, False, 0
            finished = False
            try:
                yield epoch
                finished = True
            finally:
                # Also when the script leaves the loop.
                self.in_body = False
                # An epoch that was left before it trained is not done; a loaded state has set which one is next.
                if not self.loaded and (finished or self.trained):
                    self.next = epoch + 1

    def _first(self, num_epochs: int) -> int:
        if self.loop < self.resume_loop:
            return num_epochs
        return self.resume_next if self.loop == self.resume_loop else 0

    @property
    def is_first(self) -> bool:
        """Whether the current `run.steps` is the first in its body, or in a script that has no loop before it."""
        if self.in_body:
            return self.calls == 1 and self.calls_outside == 0
        return self.calls_outside == 1 and self.loop == 0

    def count_call(self) -> None:
        """Count a call of `run.steps`."""
        if self.in_body:
            self.calls += 1
        else:
            self.calls_outside += 1

    def begin_steps(self) -> None:
        """`run.steps` begins. Raises `UsageError` when a state was saved in this body, as if the epoch were over."""
        if self.saved and self.in_body:
            raise UsageError(
                "run.save_state was called before the last run.steps of this epoch, so a resumed run would skip the "
                "rest of it.",
                "Save at the end of the epoch loop's body, or at its beginning.",
            )

    def end_steps(self) -> None:
        """`run.steps` is finished, or the script left it."""
        self.trained = True

    def position(self, *, inside: bool = False) -> dict[str, Any]:
        """What a state keeps: the loop, and the epoch at which a resumed run continues; `inside`: that of the current body."""
        if inside:
            return {"loop": self.loop, "next": self.next}
        self.saved = self.in_body and self.trained
        return {"loop": self.loop, "next": self.next + 1 if self.saved else self.next}

    def restore(self, position: dict[str, Any]) -> None:
        """Continue from `position`: in a later loop, or in the current one, whose next epoch it then is.

        Raises:
            UsageError: when the script is in another loop than the one in which the state was saved.
        """
        self.check(position)
        loop, following = position["loop"], position["next"]
        if self.in_body:
            self.next, self.loaded = following, True
        self.resume_loop, self.resume_next = loop, following

    def check(self, position: dict[str, Any]) -> None:
        """Raise `UsageError` where `restore` would; change nothing."""
        loop = position["loop"]
        if self.in_body and loop != self.loop:
            raise UsageError(
                f"The state was saved in the script's run.epochs loop {loop}, but this is loop {self.loop}.",
                "Load it before the first run.epochs.",
            )


@dataclass(frozen=True)
class InsideEpoch:
    """A place between two steps of the first `run.steps` of an epoch's body, or of a script without `run.epochs`."""

    loader: int
    """Which of the prepared loaders, from 0."""
    order: str
    """The digest of the epoch's order (`EpochPlan.digest`)."""
    done: int
    """How many of the epoch's steps are finished."""
    loop: int
    """Which `run.epochs` of the script, from 1; 0 outside of one."""
