"""What a run is tried with, to see whether it helps: each is done once, when torch has been imported."""

from __future__ import annotations

import functools
import importlib
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import DataLoader


def _torch() -> None:
    torch.manual_seed(0)


def _random() -> None:
    random.seed(0)


def _numpy() -> None:
    with suppress(ImportError):
        importlib.import_module("numpy").random.seed(0)


def _generators() -> None:
    """Every seed is 0: what the script seeds itself, and what would take a seed from the system or the clock."""
    for own in (_torch, _random, _numpy):
        own()
    of_torch, of_python, of_class = torch.manual_seed, random.seed, random.Random.seed

    def manual_seed(seed: Any) -> torch.Generator:
        del seed
        return of_torch(0)

    torch.manual_seed = torch.random.manual_seed = manual_seed
    torch.seed = torch.random.seed = lambda: of_torch(0).initial_seed()
    random.seed = lambda *_args, **_kwargs: of_python(0)

    def seed(self: random.Random, a: Any = None, *more: Any, **named: Any) -> None:
        # Names of temporary files must differ.
        is_name = sys._getframe(2).f_globals.get("__name__") == "tempfile"
        of_class(self, 0 if a is None and not is_name else a, *more, **named)

    random.Random.seed = seed  # type: ignore[method-assign]
    with suppress(ImportError):
        numpy: Any = importlib.import_module("numpy")
        of_numpy = numpy.random.seed
        numpy.random.seed = lambda *_args, **_kwargs: of_numpy(0)
        numpy.random.bit_generator.randbits = lambda _bits: 0


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
    "torch": _torch,
    "random": _random,
    "numpy": _numpy,
    "generators": _generators,
    "workers": _workers,
    "threads": _threads,
    "deterministic": _deterministic,
    "cudnn": _cudnn,
}
