"""A script that starts its own ranks, with torch.multiprocessing or samebits.spawn, although there are ranks already.

Over several nodes both are refused: such ranks would know nothing of the other nodes. On one node torch's `spawn` may be
about processes that are no ranks: it is said, and they get the environment that plain `python` would give them. Other
processes of multiprocessing (a loader's workers too) keep the rank's.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from samebits.notices import say
from samebits.protocol.environment import Position, RankEnvironment, refusal
from samebits.protocol.saving import OFF
from samebits.rank.start.guards.wrapping import when_imported


def guard_nested_ranks(variables: Mapping[str, str], position: Position) -> None:
    """Install the guard, now or when the script imports torch; processes that the script starts must not see `variables`."""
    num_nodes = int(variables.get("GROUP_WORLD_SIZE", "1"))
    names = frozenset(name for name in variables if name.startswith(("RANK", "WORLD_", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "SAMEBITS_RANK")))  # fmt: skip

    def install(module: ModuleType) -> None:
        original = module.start_processes

        @functools.wraps(original)
        def start_processes(*args: Any, **kwargs: Any) -> Any:
            if num_nodes > 1:
                raise refusal("torch.multiprocessing.spawn", position.rank, num_nodes)
            if position.world_size > 1 and position.rank == 0:
                say(sentence(position.world_size))
            with _without(names):
                return original(*args, **kwargs)

        module.start_processes = start_processes  # type: ignore[attr-defined]
        # The package has taken the function from its module by name.
        package = sys.modules.get("torch.multiprocessing")
        if getattr(package, "start_processes", None) is original:
            package.start_processes = start_processes  # type: ignore[union-attr]

    when_imported("torch.multiprocessing.spawn", install)


def sentence(world_size: int) -> str:
    """What the user should know."""
    return (
        f"each of {world_size} ranks starts its own processes with torch.multiprocessing.spawn. If they are meant to "
        "be the ranks, start this script with `samebits run -n 1` or `python`."
    )


@contextmanager
def _without(names: frozenset[str]) -> Iterator[None]:
    held = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)


COMPARER = "samebits.rank.checks.ddp_replicas"
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
                # The comparer is imported by the first model, so scripts without DDP import nothing.
                if not ends:
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
