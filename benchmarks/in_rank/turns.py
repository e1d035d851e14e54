"""Sides of a comparison taking turns inside the ranks; the time of a turn is that of its slowest rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist

Turn = Callable[[], None]


def take_turns(
    sides: Mapping[str, Turn],
    rounds: int,
    *,
    warm_up: int,
    barrier: Turn,
    before: Callable[[str], None] = lambda _: None,
) -> dict[str, list[int]]:
    """Nanoseconds of each side's turns on this rank. Every round begins with a different side.

    Args:
        sides: what each does in its turn.
        rounds: those that count.
        warm_up: rounds before them.
        barrier: lets the ranks start a turn together.
        before: called with the side's name before the barrier; its time does not count.
    """
    names = list(sides)
    times: dict[str, list[int]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        for name in rotated(names, number):
            before(name)
            barrier()
            started = time.perf_counter_ns()
            sides[name]()
            times[name].append(time.perf_counter_ns() - started)
    return {name: values[warm_up:] for name, values in times.items()}


def rotated(names: Sequence[str], number: int) -> list[str]:
    """The same names, beginning with a different one in each round."""
    at = number % len(names)
    return [*names[at:], *names[:at]]


def slowest(times: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Collective: the longest time over ranks of each turn."""
    table = torch.tensor(list(times.values()))
    if dist.is_initialized():
        dist.all_reduce(table, dist.ReduceOp.MAX)
    return dict(zip(times, table.tolist(), strict=True))
