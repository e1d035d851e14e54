"""What a person chooses of how the launcher behaves. It imports next to nothing, so `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from samebits.protocol.saving import Keeping


class Verbosity(IntEnum):
    """How much the launcher itself prints; the ranks' own output is not affected."""

    QUIET = 0
    """Failures only."""
    NORMAL = 1
    DETAILED = 2
    """Also each rank's process and log."""


class Recover(StrEnum):
    """What happens when something is lost: a rank, a loader worker, the same bits."""

    AUTO = "auto"
    """All ranks start again, from the newest state."""
    EXACT = "exact"
    """The same, but never from a state without what the script keeps itself: rather from the beginning."""
    OFF = "off"
    """The run ends."""


class OnDamage(StrEnum):
    """What happens when a rank no longer holds the same bits as the others."""

    RESTART = "restart"
    """All ranks start again, from the newest state; each state was compared before it was written."""
    STOP = "stop"


class OnStall(StrEnum):
    """What happens when a rank holds others up that does not move."""

    REPORT = "report"
    """The launcher says so, and waits on."""
    REPLACE = "replace"
    """The rank is killed, and all start again as after any other kill."""
    STOP = "stop"


NO_LIMIT = 1_000_000
"""So many restarts that nobody counts them down."""


@dataclass(frozen=True)
class Recovery:
    """What `samebits.launcher.recovery` may do."""

    recover: Recover = Recover.OFF
    max_restarts: int | None = None
    """How often ranks may start again; None: as the script is (`recovery.most_restarts`)."""
    on_damage: OnDamage = OnDamage.RESTART
    on_stall: OnStall = OnStall.REPORT
    stall_after_s: float | None = None
    """How long others may wait for a rank; None: what is too long for what it does (`samebits.launcher.diagnosis.stalls`)."""
    keeping: Keeping = field(default_factory=Keeping)
    """How often the run keeps a snapshot in memory, if it may start again."""
    forgives_kills: bool = False
    """Whether a kill is what somebody wanted to see: one at a step where there was one before stops nothing, and takes no rank."""
    shrinks: bool = False
    """Whether each start again has one rank less, as long as there is more than one."""
    resume_nonfinite: bool = False
    """Whether the run resumes from the newest state even if that is not finite."""
    grace_s: float = 30.0
    """How long ranks that save by themselves have for it when a user signal is to end them; 0: no time."""
