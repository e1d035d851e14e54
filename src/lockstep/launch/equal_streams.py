"""Before the script's first line all ranks have the same random streams: Python's, NumPy's and torch's.

Left alone each process seeds them from the operating system. What is imported already (in the nursery) is seeded at
once; the rest at the moment the script imports it, because a fresh rank must not import torch before the script has
made its settings.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

SEED = 0

Seeding = Callable[[ModuleType], None]


def start_equal_streams() -> None:
    """Seed all three, now or when they are imported."""
    random.seed(SEED)
    later: dict[str, Seeding] = {}
    for name, seeding in (("numpy", _seed_numpy), ("torch", _seed_torch)):
        if name in sys.modules:
            seeding(sys.modules[name])
        else:
            later[name] = seeding
    if later:
        sys.meta_path.insert(0, _SeedOnImport(later))


def _seed_numpy(numpy: ModuleType) -> None:
    numpy.random.seed(SEED)


def _seed_torch(torch: ModuleType) -> None:
    torch.default_generator.manual_seed(SEED)


class _SeedOnImport(MetaPathFinder):
    """Lets the other finders find a module, and seeds it when it has been executed."""

    def __init__(self, seedings: dict[str, Seeding]) -> None:
        self._seedings = seedings

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        seeding = self._seedings.pop(fullname, None)
        spec = importlib.util.find_spec(fullname) if seeding is not None else None
        if spec is not None and spec.loader is not None and seeding is not None:
            spec.loader = _SeedingLoader(spec.loader, seeding)
        return spec


class _SeedingLoader(Loader):
    """Steps aside for the real loader before the module's own code runs."""

    def __init__(self, loader: Loader, seeding: Seeding) -> None:
        self._loader = loader
        self._seeding = seeding

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._seeding(module)
