"""Where a run was at a place from which it can go on, noted while the run is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.run.position.modes import Modes


@dataclass
class Moment:
    """A place between two steps, at the beginning of an epoch's body, or after a loop over epochs."""

    counters: Mapping[str, Any]
    """As a state holds them (`run.saving.state.counters`)."""
    streams: Mapping[str, Any] | None
    """The random streams, where what comes next draws from them; None where a step begins, which has its own."""
    states: Mapping[str, Any]
    """Those of schedulers and of the run's own objects, by label."""
    values: Mapping[str, Any]
    """`run.state`."""
    modes: Modes
    """What had been switched another way since the run's beginning."""
    seen: int
    """`Streams.seen`, there or where the next step has begun."""
