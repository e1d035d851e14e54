"""Which layers and parameters each stage gets: decided from a trace and measured costs, the same on every rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.errors import UsageError
from lockstep.layout.balance import balance
from lockstep.strategy.trace import Call, Place, Trace

NEAREST = "Use --strategy ddp"


@dataclass(frozen=True)
class Stage:
    """One stage of a model."""

    layers: tuple[str, ...]
    """What it computes: the outermost layers, in order."""
    skipped: tuple[str, ...]
    """Layers whose calls come before the stage begins, and that are not computed here."""
    entry: str | None
    """The layer whose call begins the stage; None for the first."""
    carried: tuple[int, ...]
    """Which of that call's arguments come from the stage before."""
    cost_s: float
    """Measured seconds of forward and backward of one lane."""


@dataclass(frozen=True)
class ModelCut:
    """A model in stages."""

    stages: tuple[Stage, ...]
    holders: dict[str, int]
    """The stage of each parameter, and of each buffer that one stage alone uses, by name."""

    def __str__(self) -> str:
        """One clause for each stage: its layers, and what a lane costs there."""
        return "; ".join(
            f"{number}: {_span(stage.layers)}, {1e3 * stage.cost_s:.1f} ms" for number, stage in enumerate(self.stages)
        )

    def encode(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @staticmethod
    def decode(words: dict[str, Any]) -> ModelCut:
        """The inverse of `encode`, after JSON."""
        stages = [
            Stage(
                tuple(one["layers"]), tuple(one["skipped"]), one["entry"], tuple(one["carried"]), float(one["cost_s"])
            )
            for one in words["stages"]
        ]
        return ModelCut(tuple(stages), dict(words["holders"]))


def allowed_places(name: str, trace: Trace, num_stages: int, wanted: Sequence[str]) -> list[Place]:
    """The places of a trace where a cut separates no shared parameter; or those that the user named.

    Raises:
        UsageError: when there are too few for `num_stages`, or a named one is not possible.
    """
    tied = {place.module: used for place in trace.places if (used := _used_on_both_sides(trace, place))}
    allowed = [place for place in trace.places if place.module not in tied]
    names = [place.module for place in allowed]
    if wanted:
        return _named(
            name, [place for place in allowed if place.module in wanted], names, wanted, num_stages, trace, tied
        )
    if len(allowed) >= num_stages - 1:
        return allowed
    reasons = [
        f"{used} is used on both sides of {count} possible cut{'s' * (count > 1)}; layers that share a parameter belong into one stage"
        for used, count in Counter(tied.values()).items()
    ]
    reasons += [f"{module}: {why}" for module, why in trace.around.items() if "goes around" in why or "several" in why]
    places = f"only before {', '.join(names)}" if names else "nowhere"
    raise UsageError(
        f"{name} can be cut {places}, so it makes at most {len(allowed) + 1} stage{'s' * bool(allowed)}, but {num_stages} are "
        f"asked for{f' ({_few(reasons)})' if reasons else ''}. "
        + (f"Start with -n {len(allowed) + 1}, or a mesh with fewer stages." if allowed else f"{NEAREST}.")
    )


def _named(  # noqa: PLR0917 - six, as the house allows, and what they are compared with
    name: str,
    found: list[Place],
    names: Sequence[str],
    wanted: Sequence[str],
    num_stages: int,
    trace: Trace,
    tied: dict[str, str],
) -> list[Place]:
    if len(wanted) != num_stages - 1:
        raise UsageError(
            f"cut={list(wanted)} names {len(wanted)} layers that begin a stage, but {num_stages} stages need "
            f"{num_stages - 1}."
        )
    for module in wanted:
        if module not in names:
            why = trace.around.get(module)
            why = why or (f"{tied[module]} is used on both sides of it" if module in tied else "it is not called")
            raise UsageError(
                f"No stage of {name} can begin with {module!r}: {why}. Possible are: {_few(names, 12) or 'none'}."
            )
    return found


def decide_cut(trace: Trace, places: Sequence[Place], costs: Sequence[float], num_stages: int) -> ModelCut:
    """Balance the stages.

    Args:
        trace: of the model.
        places: from `allowed_places`.
        costs: seconds between them: one more than places.
        num_stages: how many stages.
    """
    bounds = (0, *balance(costs, num_stages), len(costs))
    entries: list[Place | None] = [None, *(places[bound - 1] for bound in bounds[1:-1])]
    ends = [place.event for place in entries if place is not None] + [1 << 62]
    stages = []
    for number, (entry, end) in enumerate(zip(entries, ends, strict=True)):
        begin = entry.event if entry is not None else 0
        stages.append(
            Stage(
                layers=tuple(_outermost(call for call in trace.calls if begin <= call.begin and call.end < end)),
                skipped=tuple(_outermost(call for call in trace.calls if call.end < begin and call.depends)),
                entry=entry.module if entry is not None else None,
                carried=entry.carried if entry is not None else (),
                cost_s=sum(costs[bounds[number] : bounds[number + 1]]),
            )
        )
    holders = {
        name: next(stage for stage, end in enumerate(ends) if events[0] < end) for name, events in trace.uses.items()
    }
    for name, events in trace.constants.items():
        users = {next(stage for stage, end in enumerate(ends) if event < end) for event in events}
        if len(users) == 1:
            holders[name] = users.pop()
    return ModelCut(tuple(stages), holders)


def _used_on_both_sides(trace: Trace, place: Place) -> str:
    """The first parameter that a cut would separate from itself; empty when there is none."""
    return next((name for name, events in trace.uses.items() if min(events) < place.event <= max(events)), "")


def _outermost(calls: Iterable[Call]) -> list[str]:
    """The calls that are inside no other of them, in order; each layer once."""
    names: dict[str, None] = {}
    end = -1
    for call in calls:
        if call.begin > end:
            names[call.module] = None
            end = call.end
    return list(names)


def _span(layers: Sequence[str]) -> str:
    if len(layers) <= 3:
        return ", ".join(layers)
    return f"{layers[0]} to {layers[-1]} ({len(layers)} layers)"


def _few(texts: Sequence[str], limit: int = 3) -> str:
    rest = len(texts) - limit
    return "; ".join(texts[:limit]) + (f"; and {rest} more" if rest > 0 else "")
