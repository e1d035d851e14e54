"""What a run is tried with, to see whether it helps: each is done once, when torch has been imported."""

from __future__ import annotations

import functools
import importlib
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import DataLoader


def _seed() -> None:
    """All generators that scripts use without a word."""
    torch.manual_seed(0)
    random.seed(0)
    with suppress(ImportError):
        importlib.import_module("numpy").random.seed(0)


def _workers() -> None:
    """Data is loaded in the process itself."""
    made = DataLoader.__init__

    @functools.wraps(made)
    def make(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
        # Behind the data set, batch_size, shuffle, sampler and batch_sampler comes num_workers.
        args = (*args[:5], 0, *args[6:]) if len(args) > 5 else args
        if len(args) <= 5:
            kwargs["num_workers"] = 0
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            kwargs.pop(name, None)
        made(self, *args, **kwargs)

    DataLoader.__init__ = make  # type: ignore[method-assign]


def _threads() -> None:
    torch.set_num_threads(1)


def _deterministic() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)


def _cudnn() -> None:
    torch.backends.cudnn.benchmark = False


FIXES: dict[str, Callable[[], None]] = {
    "seed": _seed,
    "workers": _workers,
    "threads": _threads,
    "deterministic": _deterministic,
    "cudnn": _cudnn,
}
