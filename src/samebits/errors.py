"""The one exception tree.

```
SamebitsError
├── UsageError      a mistake in the script, the options or the data: the problem and the fix, exit code 2
├── EnvironmentFailure  the world failed: a peer died, a disk is full, a port is taken
│   ├── PeerLost    another rank is gone; never the cause, always a consequence
│   └── RanksDiffer a rank no longer holds the same bits as the others
├── RankFailed      in the caller of `samebits.spawn`: what one of its ranks raised
└── InternalError       samebits broke a promise of its own: please report it
```

A user's mistake, the world's failure and ours are different classes, because a person reacts differently to each.
Messages quote names and texts from elsewhere; control characters in them are written out, so that no traceback acts on
a terminal.
"""

from typing import Any

from samebits.machine.visible import hung, visible_lines


class SamebitsError(Exception):
    """Root of everything that samebits raises on purpose."""

    finding: str = ""
    """The name of the finding that explains it, if there is one (docs/findings/)."""
    known_to: int = 1
    """How many nodes of a run know of it already; this one is one of them."""

    def __str__(self) -> str:
        return visible_lines(super().__str__())


class UsageError(SamebitsError):
    """The script, an option or the data asks for something that cannot be right.

    A terminal gets `error:` with the problem and `help:` with the fix; a traceback has them one after the other.
    """

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem, fix)
        self.problem = problem
        """What is wrong: whole sentences."""
        self.fix = fix
        """What to do about it: the first sentence is an imperative. Code may follow on lines of its own."""

    def __str__(self) -> str:
        return visible_lines(f"{self.problem} {self.fix}")


class EnvironmentFailure(SamebitsError):  # noqa: N818 - not the user's error
    """Something outside the program failed: a process, a file system, a network."""


class PeerLost(EnvironmentFailure):
    """Another rank left in the middle of an exchange. The launcher prints that rank's failure, not this one."""

    def __init__(self, text: str, *, is_dead: bool = False) -> None:
        super().__init__(text)
        self.is_dead = is_dead
        """Whether its process has ended without a word."""


class RanksDiffer(EnvironmentFailure):
    """What all ranks must hold has other bits on one rank; raised there, while the others raise `PeerLost`."""

    def __init__(self, rank: int, what: str, since: str) -> None:
        super().__init__(rank, what, since)
        self.rank = rank
        self.what = what
        """The rest of the sentence that begins with the rank."""
        self.since = since
        """Until when the ranks agreed."""

    def __str__(self) -> str:
        return visible_lines(f"Rank {self.rank} {self.what} ({self.since}). {DIFFERENT_BITS}")


DIFFERENT_BITS = (
    "Memory was damaged, or the script does something on some ranks only, outside the lanes: an optimizer.step(), a "
    "learning rate, a write. `samebits verify` names the first step and tensor."
)
"""What ranks can have done that no longer hold the same bits."""


class RankFailed(SamebitsError):  # noqa: N818 - what happened
    """The first rank of a `samebits.spawn` that failed, raised once in the caller; the message has its traceback.

    When the rank raised a UsageError, this exception is one too.
    """

    def __init__(self, message: str, rank: int, traceback: str, exit_code: int) -> None:
        SamebitsError.__init__(self, message)  # not the next class of RankMisused
        self.rank = rank
        self.traceback = traceback
        """The rank's own traceback as text; empty when a signal or `sys.exit` ended it."""
        self.exit_code = exit_code
        """1 for an exception, the code of `sys.exit`, 128 + n for signal n."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self._words(), self.rank, self.traceback, self.exit_code)

    def _words(self) -> tuple[str, ...]:
        return (str(self.args[0]),)


class RankMisused(RankFailed, UsageError):  # noqa: N818
    """A rank of a `samebits.spawn` raised a UsageError."""

    def __init__(self, problem: str, fix: str, rank: int, traceback: str, exit_code: int) -> None:
        RankFailed.__init__(self, f"{problem} {fix}", rank, traceback, exit_code)
        self.problem, self.fix = problem, fix

    def _words(self) -> tuple[str, ...]:
        return self.problem, self.fix


class InternalError(SamebitsError):
    """An invariant of samebits does not hold. This is a bug in samebits."""


def mistake_text(problem: str, fix: str) -> str:
    """Format a mistake for a terminal as uv and rustc do: the problem, then the fix on a line of its own."""
    return f"error: {hung(problem)}\nhelp: {hung(fix)}"


SAMPLE_NOTE = "samebits: while fetching sample {index} of the data set"
"""The note that the feed adds to an exception from the user's data set; the failure block reads it."""
