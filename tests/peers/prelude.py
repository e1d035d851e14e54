"""Imported before a public script: what would be downloaded, a clock, and a kill.

Metrics are counted here instead of being fetched; KILL_AT=13 kills the last process after its 13th update in the first start; at
the end the first process prints the median time of an update.
"""

from __future__ import annotations

import atexit
import os
import signal
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

# isort: off
import tests.peers.vision_operators  # noqa: F401 - before transformers

# isort: on
import accelerate
import evaluate
from torch.optim.optimizer import register_optimizer_step_post_hook

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
_ends: list[float] = []


class Metric:
    """The share of predictions that are right, of everything that was added."""

    def __init__(self) -> None:
        self._right: list[bool] = []

    def add_batch(self, predictions: Any, references: Any) -> None:
        assert len(predictions) == len(references)
        self._right += [repr(mine) == repr(theirs) for mine, theirs in zip(predictions, references, strict=True)]

    def compute(self, predictions: Any = None, references: Any = None, **_: Any) -> dict[str, float]:
        if predictions is not None:
            self.add_batch(predictions, references)
        right, self._right = self._right, []
        names = ("accuracy", "score", "overall_precision", "overall_recall", "overall_f1", "overall_accuracy")
        return {name: sum(right) / max(len(right), 1) for name in names}


def after_update(*_: Any) -> None:
    _ends.append(time.perf_counter())
    is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if len(_ends) == int(os.environ.get("KILL_AT", "0")) and is_first and WORLD - 1 == RANK:
        os.kill(os.getpid(), signal.SIGKILL)


def at_end() -> None:
    if len(_ends) > 8 and RANK == 0:
        took = [after - before for before, after in pairwise(_ends[3:])]
        print(f"\nmilliseconds {statistics.median(took) * 1e3:.2f}", file=sys.stderr, flush=True)


accelerate.DistributedType.TPU = accelerate.DistributedType.XLA  # which some scripts still name
evaluate.load = lambda *_, **__: Metric()
register_optimizer_step_post_hook(after_update)
atexit.register(at_end)
