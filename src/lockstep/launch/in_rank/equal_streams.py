"""Before the script's first line all ranks have the same random streams: Python's, NumPy's and torch's.

Left alone, each process seeds them from the operating system. What is already imported (in the nursery) is seeded at
once; the rest when the script imports it, because a fresh rank must not import torch before the script has made its
settings.
"""

from __future__ import annotations

import random
from types import ModuleType

from lockstep.launch.guards.after_import import when_imported

SEED = 0


def start_equal_streams() -> None:
    """Seed all three, now or when they are imported."""
    random.seed(SEED)
    when_imported("numpy", _seed_numpy)
    when_imported("torch", _seed_torch)


def _seed_numpy(numpy: ModuleType) -> None:
    numpy.random.seed(SEED)


def _seed_torch(torch: ModuleType) -> None:
    torch.default_generator.manual_seed(SEED)
