"""Where the time of a pipeline goes: a pure function over what its stages measured.

With p stages and m micro-batches a stage of a perfect pipeline works for m of m + p - 1 turns: the bubble is
(p - 1) / m of the work, under GPipe and under 1F1B alike. A turn is as long as that of the slowest stage. What is left
is messages, the cost of each call, data and update, and waiting that no schedule needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One stage, in seconds over the same steps as the others."""

    rank: int
    layers: tuple[str, ...]
    forward_s: float
    backward_s: float
    wait_s: float
    """For another stage, or for the exchange of gradients."""
    other_s: float
    """Data, update, the script's own."""

    @property
    def busy_s(self) -> float:
        return self.forward_s + self.backward_s

    @property
    def total_s(self) -> float:
        return self.busy_s + self.wait_s + self.other_s


@dataclass(frozen=True)
class Losses:
    """Parts of the time of a pass; together with `useful` they add up to 1."""

    useful: float
    """The time that equal stages without a bubble would need."""
    unequal: float
    """The extra time, because the slowest stage decides."""
    bubble: float
    other: float
    """Messages, calls, data, update, and waiting beyond the bubble."""
    slowest: int
    """The rank of the slowest stage."""
    ratio: float
    """Its work relative to that of the fastest stage."""


def ideal_speed_up(num_stages: int, micro_batches: int) -> float:
    """Of a pipeline of equal stages over one device: p / (1 + (p - 1) / m)."""
    return num_stages / (1 + (num_stages - 1) / micro_batches)


def losses(stages: Sequence[Stage], micro_batches: int) -> Losses | None:
    """Where the pass's time went; None when no stage worked.

    Invariant: the parts are at least 0 and add up to 1.
    """
    busy = [stage.busy_s for stage in stages]
    if not min(busy, default=0.0):
        return None
    mean, most = sum(busy) / len(busy), max(busy)
    bubble = most * (len(stages) - 1) / micro_batches
    total = max(*(stage.total_s for stage in stages), most)
    bubble = min(bubble, total - most)
    return Losses(
        useful=mean / total,
        unequal=(most - mean) / total,
        bubble=bubble / total,
        other=(total - most - bubble) / total,
        slowest=stages[busy.index(most)].rank,
        ratio=most / min(busy),
    )


def explain_losses(found: Losses, num_stages: int, micro_batches: int) -> str:
    """One sentence, the largest loss first, each with its fix."""
    causes = [
        (
            found.bubble,
            f"to the bubble ({num_stages - 1} of {micro_batches} micro-batches; more --lanes make it smaller)",
        ),
        (
            found.unequal,
            f"to unequal stages (rank {found.slowest} computes {found.ratio:.2f} times as long as the fastest)",
        ),
        (
            found.other,
            "to messages, calls, data, update, and waiting beyond the bubble",
        ),
    ]
    listed = [f"{part:.0%} {what}" for part, what in sorted(causes, reverse=True) if part >= 0.005]
    lost = f"; it loses {', '.join(listed)}" if listed else ""
    return f"Of its step, {found.useful:.0%} is work, evenly divided{lost}."
