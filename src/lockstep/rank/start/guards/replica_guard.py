"""Let the replicas of a plain script's DistributedDataParallel be compared (`lockstep.rank.checks.ddp_replicas`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lockstep.protocol.checks import OFF
from lockstep.protocol.environment import RankEnvironment
from lockstep.rank.start.guards.wrapping import when_imported

COMPARER = "lockstep.rank.checks.ddp_replicas"
"""By name, because that module belongs inside a rank."""


def guard_replicas(environment: RankEnvironment) -> Callable[[bool], None]:
    """Watch the class from its first model on.

    Returns:
        To be called when the script has ended: with whether it ended by itself, and not by an exception.
    """
    position, settings = environment.position, environment.settings
    ends: list[Callable[[bool], None]] = []
    if settings is not None and position.world_size > 1 and settings.check_every != OFF:
        first = position.rank - position.local_rank

        def install(module: ModuleType) -> None:
            ddp = module.DistributedDataParallel

            def first_new(kind: Any, *args: Any, **kwargs: Any) -> Any:
                if not ends:  # scripts without DDP import nothing
                    ranks = range(first, first + position.local_world_size)
                    watch = importlib.import_module(COMPARER).watch
                    ends.append(watch(ddp, settings.run_folder, position.rank, ranks, position.world_size))
                return ddp.__new__(kind, *args, **kwargs)

            ddp.__new__ = staticmethod(first_new)

        when_imported("torch.nn.parallel.distributed", install)

    def over(is_by_itself: bool) -> None:
        for end in ends:
            end(is_by_itself)

    return over
