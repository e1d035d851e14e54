"""The one exception tree.

```
LockstepError
├── UsageError      a mistake in the script, the options or the data: one sentence with the way out, exit code 2
├── WorldError      the world failed: a peer died, a disk is full, a port is taken
│   └── PeerLost    another rank is gone; never the cause, always a consequence
└── PromiseBroken   lockstep broke a promise of its own: please report it
```

A user's mistake, the world's failure and ours are different classes, because a person reacts differently to each.
"""


class LockstepError(Exception):
    """Root of everything that lockstep raises on purpose."""


class UsageError(LockstepError):
    """The script, an option or the data asks for something that cannot be right; the message says the way out."""


class WorldError(LockstepError):
    """Something outside the program failed: a process, a file system, a network."""


class PeerLost(WorldError):  # noqa: N818 - a state of the world, named as people say it
    """Another rank left in the middle of an exchange. The launcher prints that rank's failure, not this one."""


class PromiseBroken(LockstepError):  # noqa: N818
    """An invariant of lockstep does not hold. This is a bug in lockstep."""
