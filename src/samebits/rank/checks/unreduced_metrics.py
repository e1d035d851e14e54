"""Evaluations: whether what a rank saw of one was ever put together with what the others saw.

Each rank evaluates a share of the batches. A script written for one process adds up its share and prints it: the
smaller the share, the more wrong the number. Nobody can see what a script does with a number; but a loop after which
nothing was exchanged before the next step, or before the end, has given one rank's numbers, and we say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from samebits.rank.position.tally import FIRST


@dataclass(frozen=True)
class Share:
    """What one rank saw of an evaluation."""

    where: str
    """The loop's line."""
    num_seen: int
    num_samples: int
    is_counted: bool
    """Whether something was added to a tally inside."""


class UnreducedMetrics:
    """Remembers the finished evaluations whose numbers are this rank's own so far."""

    def __init__(self) -> None:
        self._open: list[Share] = []
        self._said: set[str] = set()
        self._left: list[str] = []
        """Lines of loops that were left early."""
        self._num_exchanges: int | None = 0
        """The script's own exchanges by torch.distributed when the first open evaluation began."""

    def begin(self, num_exchanges: int | None) -> None:
        """Note that a loop over a prepared loader begins, after so many operations of torch.distributed; None if they are not counted."""
        if not self._open:
            self._num_exchanges = num_exchanges

    def end(self, share: Share) -> None:
        """Note a loop that came to its end."""
        if share.num_seen < share.num_samples:
            self._open.append(share)

    def leave(self, where: str) -> None:
        """Note a loop that was left early: even put together, its numbers are over other samples than on one rank."""
        self._left.append(where)

    def take_left(self) -> list[str]:
        """Return the lines of loops that were left early, each once; call it before a step and at the end."""
        if not self._left:
            return []
        new = [line for line in dict.fromkeys(self._left) if line not in self._said]
        self._said.update(new)
        self._left = []
        return new

    def put_together(self, *, only_counted: bool = False) -> None:
        """Note that ranks exchanged values: gathered rows, a sum; or a tally, which only covers loops that used one."""
        self._open = [share for share in self._open if only_counted and not share.is_counted]

    def take(self, num_exchanges: Callable[[], int | None]) -> list[Share]:
        """Return the shares that nothing was exchanged after, each line once; call it before a step and at the end."""
        if not self._open:
            return []
        count = num_exchanges()
        found = self._open if count is not None and count == self._num_exchanges else []
        new = list({share.where: share for share in found if share.where not in self._said}.values())
        self._said.update(share.where for share in new)
        self._open = []
        return new


def sentence(share: Share) -> str:
    """What to say about one."""
    return (
        f"{share.where}: this loop saw {share.num_seen} of {share.num_samples} samples on rank 0, and nothing was "
        f"combined with the other ranks before the next step, so numbers computed in it cover only one rank's share. "
        f"Use `tally = run.tally()`, `tally.add(accuracy=...)` in the loop and `tally.mean()` after it, or run.gather "
        f"or run.sum."
    )


def left_early(where: str) -> str:
    """What to say about a loop that was left early."""
    return (
        f"{where}: this loop over a prepared loader was left early, after the first batches of each rank, so numbers computed in it "
        f"depend on the number of ranks. {FIRST}"
    )
