"""Where the time of steps went, rank by rank, and which rank all others wait for in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from types import MappingProxyType

from samebits.protocol.journal.gauges import Gauges

PARTS = ("data", "compute", "exchange", "update", "script")
TIME_NAMES = {"data": "data", "compute": "compute", "exchange": "exchange", "update": "optimizer", "script": "other"}
"""What the time of a step goes into, as people read it everywhere."""
OWN = ("data", "compute", "update", "script")
"""Parts in which a rank keeps others waiting; in the exchange it waits itself. In the script it may do either, so that
counts only where nothing else does."""

LEAST_STEPS = 10
TIMES = 1.5
LEAST_SHARE = 0.2
LEAST_S = 0.002
"""A rank is slow in a part that takes this many times as long as for the others, if that costs this share of a step."""
MUCH = 0.2
"""The share of a step from which something could be done about a part."""
LEAST_DATA_S = 0.002
"""Fetching in a worker gains nothing below this: handing samples over takes as long."""
SHARED_UPDATE, LEAST_UPDATE_S = 0.1, 0.002
"""The share of a step that `zero1` must save to be worth a line, and the least time of an update."""


@dataclass(frozen=True)
class Spent:
    """What one rank's steps took on average, in seconds."""

    steps: int
    samples: int
    parts: dict[str, float]

    @property
    def step_s(self) -> float:
        return sum(self.parts.values())

    @classmethod
    def between(cls, old: Gauges, new: Gauges) -> Spent:
        """From two looks at one rank's gauges."""
        steps = new.step - old.step
        each = {part: (getattr(new, f"{part}_ns") - getattr(old, f"{part}_ns")) / 1e9 / max(steps, 1) for part in PARTS}
        return cls(steps, new.samples - old.samples, each)


@dataclass(frozen=True)
class Straggler:
    """A rank that takes longer than the others, step after step."""

    rank: int
    part: str
    own_s: float
    others_s: float
    home: str = ""
    """The node of the rank, `node 1 (host b)`; empty on one node."""

    @property
    def text(self) -> str:
        """`rank 3 takes 48 ms a step in compute, the others 20 ms`."""
        own, others = f"{self.own_s * 1e3:.0f} ms", f"{self.others_s * 1e3:.0f} ms"
        who = f"rank {self.rank}{f' on {self.home}' if self.home else ''}"
        part = "other lines" if self.part == "script" else TIME_NAMES[self.part]
        return f"{who} takes {own} a step in {part}, the others {others}, and wait for it"


def straggler(
    spent: Sequence[Spent], first: int = 0, homes: Mapping[int, str] = MappingProxyType({})
) -> Straggler | None:
    """The rank that costs the others most time, if one does; ranks with more samples may take longer.

    Args:
        spent: of ranks in their order; all over the same steps.
        first: the lowest of the ranks.
        homes: the node of each rank; none on one node.
    """
    if len(spent) < 2 or min(one.steps for one in spent) < LEAST_STEPS:
        return None
    usual = mean(one.samples for one in spent)
    found = []
    for part in OWN:
        took = [one.parts[part] for one in spent]
        # Ranks may carry more lanes than others: what counts is the time for equally many samples.
        if part in {"data", "compute"} and all(one.samples for one in spent):
            took = [seconds * usual / one.samples for seconds, one in zip(took, spent, strict=True)]
        for place, own_s in enumerate(took):
            others_s = median(took[:place] + took[place + 1 :])
            excess_s = own_s - others_s
            if own_s > TIMES * others_s and excess_s > max(LEAST_SHARE * spent[place].step_s, LEAST_S):
                rank = first + place
                found.append((excess_s, Straggler(rank, part, own_s, others_s, homes.get(rank, ""))))
    return max(found, key=lambda each: (each[1].part != "script", each[0]))[1] if found else None


@dataclass(frozen=True)
class Summary:
    """Of a whole run; nothing of it is known where no step was made."""

    step_s: float = 0.0
    shares: Mapping[str, int] = field(default_factory=dict)
    """Percent of a step by `TIME_NAMES`; together 100."""
    slowest: str = ""
    """For people, as `advice`; empty where there is nothing to say."""
    advice: str = ""
    is_starved: bool = False
    """Whether the advice is about samples that come too late."""


def summary(
    spent: Sequence[Spent], first: int = 0, homes: Mapping[int, str] = MappingProxyType({}), strategy: str = ""
) -> Summary:
    """What the time of a run's steps went into, which rank was slowest, and what would help.

    Imports and what else precedes the first step do not count.

    Args:
        spent: of ranks in their order, from the first step to the last.
        first: the lowest of the ranks.
        homes: the node of each rank; none on one node.
        strategy: the run's; empty where it is not known.
    """
    parts = {part: mean(one.parts[part] for one in spent) for part in PARTS}
    step_s = sum(parts.values())
    if not step_s or not all(one.steps for one in spent):
        return Summary()
    slow = straggler(spent, first, homes)
    return Summary(
        step_s,
        percents({TIME_NAMES[part]: took for part, took in parts.items()}),
        slow.text if slow is not None else "",
        _advice(parts, step_s, len(spent), strategy),
        _is_starved(parts, step_s),
    )


def percents(parts: Mapping[str, float]) -> dict[str, int]:
    """Whole percents of the sum, which must not be 0. Invariant: they add up to 100; those cut off most are rounded up."""
    exact = {name: 100 * took / sum(parts.values()) for name, took in parts.items()}
    whole = {name: int(share) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: whole[name] - exact[name])[: 100 - sum(whole.values())]:
        whole[name] += 1
    return whole


def _is_starved(parts: dict[str, float], step_s: float) -> bool:
    return parts["data"] >= max(MUCH * step_s, LEAST_DATA_S)


def _advice(parts: dict[str, float], step_s: float, ranks: int, strategy: str) -> str:
    shares = {part: took / step_s for part, took in parts.items()}
    if _is_starved(parts, step_s):
        return f"data {shares['data']:.0%}: more loader workers (num_workers=) would fetch while ranks compute"
    if shares["exchange"] >= MUCH and ranks > 1:
        return f"exchange {shares['exchange']:.0%}: larger batches, or fewer ranks, would wait less"
    # Under zero1 each rank updates its share of the parameters only.
    saved = shares["update"] * (1 - 1 / ranks)
    if strategy == "ddp" and saved >= SHARED_UPDATE and parts["update"] >= LEAST_UPDATE_S:
        return f"optimizer {shares['update']:.0%}: --strategy zero1 would share it, for steps about {saved:.0%} shorter"
    return ""
