"""A script that starts its own ranks, with torch.multiprocessing or lockstep.spawn, although there are ranks already.

Over several nodes both are refused: such ranks would know nothing of the other nodes. On one node torch's `spawn` may be
about processes that are no ranks: it is said, and they get the environment that plain `python` would give them. Other
processes of multiprocessing (a loader's workers too) keep the rank's.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from lockstep.notices import say
from lockstep.protocol.environment import Position
from lockstep.protocol.nested_ranks import refusal
from lockstep.rank.start.guards.wrapping import when_imported


def guard_nested_ranks(variables: Mapping[str, str], position: Position) -> None:
    """Install the guard, now or when the script imports torch.

    Args:
        variables: what the launcher set for the rank; the processes that it starts must not see them.
        position: the rank's.
    """
    num_nodes = int(variables.get("GROUP_WORLD_SIZE", "1"))
    names = frozenset(name for name in variables if name.startswith(("RANK", "WORLD_", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "LOCKSTEP_RANK")))  # fmt: skip

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
        package = sys.modules.get("torch.multiprocessing")
        if getattr(package, "start_processes", None) is original:
            package.start_processes = start_processes  # type: ignore[union-attr]

    when_imported("torch.multiprocessing.spawn", install)


def sentence(world_size: int) -> str:
    """What the user should know."""
    return (
        f"each of {world_size} ranks starts its own processes with torch.multiprocessing.spawn. If they are meant to "
        "be the ranks, start this script with `lockstep run -n 1` or `python`."
    )


@contextmanager
def _without(names: frozenset[str]) -> Iterator[None]:
    held = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)
