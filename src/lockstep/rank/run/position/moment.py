"""Where a run was at a place from which it can go on, noted while the run is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.rank.run.position.modes import Modes


@dataclass
class Moment:
    """A place between two steps, or after the last one of an epoch."""

    counters: Mapping[str, Any]
    """As a state holds them (`rank.checkpoint.saving.state.counters`)."""
    body_streams: Mapping[str, Any] | None
    """Those of when the current body of `run.epochs` began."""
    streams: Mapping[str, Any] | None
    """The random streams, where what comes next draws from them; None where a step begins, which has its own."""
    states: Mapping[str, Any]
    """Those of schedulers and of the run's own objects, by label."""
    left: Mapping[str, Any]
    """What the script reads behind the last turn of its loops."""
    values: Mapping[str, Any]
    """`run.state`."""
    modes: Modes
    """What had been switched another way since the run's beginning."""
    lines: Sequence[Mapping[str, Any]]
    """What `run.log` has written in the step that ended there."""
    seen: int
    """`Streams.seen`, there or where the next step has begun."""
