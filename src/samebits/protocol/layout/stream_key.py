"""Keys of random streams: a pure function of (seed, domain, place), hashed so no two streams are neighbours.

Never `seed + step`: then rank 1 at step 4 and rank 2 at step 3 would draw the same numbers. Domains keep augmentation
and dropout apart.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum


class Domain(StrEnum):
    """What a stream is for."""

    START = "start"
    """From `samebits.init` to the first step: the model's initial values."""
    EPOCH = "epoch"
    """The order of the samples of one epoch."""
    FETCH = "fetch"
    """Fetching one lane's samples: augmentation."""
    LANE = "lane"
    """One lane's forward and backward: dropout, noise."""
    STEP = "step"
    """Between a step's lanes and the next: the same on every rank."""
    SCRIPT = "script"
    """Generators that the script itself makes with `run.seed(...)`."""


def stream_key(seed: int, domain: Domain, *place: int | str) -> int:
    """The 64-bit key of the stream of `domain` at `place`, such as (step, lane, pass).

    Invariant: equal arguments give equal keys on every machine; different ones differ (2^-64 per pair).
    """
    text = ":".join([str(seed), domain, *map(str, place)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
