"""The gauges of a rank: where it is in its epochs and where its time went. Written once a step, read at any time."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields

FORMAT = struct.Struct("<12qd")


@dataclass(frozen=True)
class Gauges:
    """A snapshot. Times are sums in nanoseconds since `lockstep.init`; samples are this rank's own."""

    epoch: int = 0
    """The current epoch, counted from 1; 0 before the first."""
    num_epochs: int = 0
    """0 when the script does not use `run.epochs`."""
    step: int = 0
    """Steps finished since the start, over all epochs."""
    step_in_epoch: int = 0
    steps_per_epoch: int = 0
    samples: int = 0
    """Training samples that this rank's lanes had."""
    data_ns: int = 0
    compute_ns: int = 0
    exchange_ns: int = 0
    update_ns: int = 0
    script_ns: int = 0
    """Of the script itself, after its first step."""
    num_losses: int = 0
    """Passes that had a loss; while it is 0, `loss` means nothing."""
    loss: float = float("nan")
    """The loss of the last step: the weighted mean over all lanes."""


def pack(gauges: Gauges) -> bytes:
    """The gauges as `FORMAT.size` bytes."""
    return FORMAT.pack(*vars(gauges).values())


def listed(gauges: Gauges) -> list[float]:
    """The gauges as a list, for JSON."""
    return list(vars(gauges).values())


def unlist(values: Sequence[float]) -> Gauges:
    """The inverse of `listed`."""
    counts = {field.name: int(value) for field, value in zip(fields(Gauges)[:-1], values[:-1], strict=True)}
    return Gauges(**counts, loss=values[-1])


def unpack(data: bytes) -> Gauges:
    """The inverse of `pack`."""
    return Gauges(*FORMAT.unpack(data))
