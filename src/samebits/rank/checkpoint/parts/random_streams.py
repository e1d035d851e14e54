"""Random streams: torch's, NumPy's, Python's and the device's, and as they were where the epoch's body began."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.rank.checkpoint.parts.part import BODY_STREAMS, STREAMS, UNCHANGED, Into, Part, Saved

MERSENNE_WORDS = 624
"""NumPy trusts the position in a state, and would read beyond its table."""


class Streams(Part):
    """A state from inside an epoch runs the body again up to its steps, so it has both."""

    def save(self, into: Into) -> None:
        run, at = self._run, into.at
        streams = at.streams if at is not None else run.loop_state.resumption.later_streams
        into.add(STREAMS, streams or run.components.streams.snapshot(), of_main=True)
        if into.is_inside and into.counters["inside"]["loop"]:
            body = at.body_streams if at is not None else run.loop_state.epoch.body_streams
            into.add(BODY_STREAMS, body, of_main=True)

    def check(self, saved: Saved) -> None:
        inside = saved.counters.get("inside")
        # Every state has the first; `own` would take one that is gone for None.
        self._streams = saved.decode(saved.documents[STREAMS])
        self._of_body, self._is_inside = saved.own(BODY_STREAMS), bool(inside)
        problem = wrong_streams(self._streams)
        if self._of_body is not None:
            problem = problem or wrong_streams(self._of_body)
        elif inside and inside["loop"]:
            problem = problem or "it has no random numbers of the epoch's beginning"
        if problem:
            raise UsageError(f"{problem}.", UNCHANGED)

    def load(self) -> None:
        """The body runs again with its own streams; the others wait for its steps."""
        self.rewind()
        self._run.loop_state.resumption.later_streams = self._streams if self._is_inside else None

    def rewind(self) -> None:
        """Draw what the run drew from the place on where this start goes on."""
        step = self._run.components.step_timer.step
        self._run.components.streams.restore(self._of_body or self._streams, step)


def wrong_streams(saved: Any) -> str:
    """What is wrong with them, in words; empty when nothing is."""
    try:
        torch.Generator().set_state(saved["torch"])
        own = saved["numpy"]["state"]
        if not 0 <= own["pos"] <= MERSENNE_WORDS or own["key"].shape != (MERSENNE_WORDS,):
            return "its random state of NumPy is not valid"
        np.random.RandomState().set_state(saved["numpy"])
        random.Random().setstate(saved["python"])  # noqa: S311 - no secrets
        of_gpus = [*filter(lambda one: one is not None, (saved["device"], *saved.get("devices", [])))]
        if not all(isinstance(one, Tensor) and one.dtype is torch.uint8 for one in of_gpus):
            return "its random state of the device is not valid"
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        return f"its random state is not valid ({str(error).partition(chr(10))[0]})"
    return "" if isinstance(saved, Mapping) else "its random states are not a dictionary"
