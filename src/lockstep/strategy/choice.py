"""The strategies by name."""

from __future__ import annotations

from lockstep.errors import UsageError
from lockstep.layout.placement import Placement
from lockstep.strategy.contract import Strategy
from lockstep.strategy.replica import Replica
from lockstep.transport.contract import Transport

ALIASES = {
    "single": "single",
    "ddp": "ddp",
    "distributed_data_parallel": "ddp",
    "distributeddataparallel": "ddp",
}
"""Every accepted spelling (lower case, - as _) and the strategy that it names."""


def choose_strategy(name: str | None, transport: Transport, placement: Placement) -> Strategy:
    """The strategy called `name`; by default `single` for one rank, else `ddp`.

    Raises:
        UsageError: for an unknown name, or `single` with several ranks.
    """
    world_size = transport.world_size
    chosen = ALIASES.get(name.lower().replace("-", "_")) if name else ("single" if world_size == 1 else "ddp")
    if chosen is None:
        known = ", ".join(sorted(set(ALIASES.values())))
        raise UsageError(f"There is no strategy {name!r}. Known strategies: {known}.")
    if chosen == "single" and world_size > 1:
        raise UsageError(
            f"The strategy `single` is for one rank, but there are {world_size}. Start with -n 1, or use ddp."
        )
    return Replica(transport, placement)
