"""Which layers and parameters each stage gets: decided from a trace and measured costs, the same on every rank."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samebits.errors import UsageError
from samebits.protocol.layout.schedule import balance
from samebits.protocol.records import plain, restored
from samebits.rank.strategy.stages.cutting.module_marks import StatePlace
from samebits.rank.strategy.stages.cutting.trace import Call, Candidate, Trace

NEAREST = "Use --strategy ddp"


@dataclass(frozen=True)
class Entry:
    """The layer call with which a stage begins."""

    layer: str
    number: int
    """Which call of the layer in a forward, from 1."""
    carried: tuple[int, ...]
    """Which of the call's arguments come from the stage before."""


@dataclass(frozen=True)
class Stage:
    """One stage of a model."""

    layers: tuple[str, ...]
    """What it computes: the outermost layers, in order."""
    skipped: tuple[str, ...]
    """Layers some of whose calls other stages make: here those are only followed."""
    entry: Entry | None
    """The call that begins the stage; None for the first."""
    borrowed: tuple[str, ...]
    """Parameters of earlier stages that come with it, because this stage or a later one uses them too."""
    cost_s: float
    """Measured seconds of forward and backward of one lane."""


@dataclass(frozen=True)
class ModelCut:
    """A model in stages."""

    stages: tuple[Stage, ...]
    holders: dict[str, int]
    """The stage of each parameter (the first that uses it), and of each buffer that only one stage uses, by name."""
    changing: tuple[StatePlace, ...] = ()
    """The model's state that its calls change, besides parameters and buffers."""

    def __str__(self) -> str:
        """One clause for each stage: its layers, and what a lane costs there."""
        return "; ".join(
            f"{number}: {_span(stage.layers)}, {1e3 * stage.cost_s:.1f} ms" for number, stage in enumerate(self.stages)
        )

    def encode(self) -> dict[str, Any]:
        stages = [*map(plain, self.stages)]
        return {"stages": stages, "holders": self.holders, "changing": list(self.changing)}

    @staticmethod
    def decode(words: dict[str, Any]) -> ModelCut:
        changing = tuple(StatePlace(*one) for one in words["changing"])
        return ModelCut(tuple(restored(Stage, one) for one in words["stages"]), dict(words["holders"]), changing)


def allowed_candidates(name: str, trace: Trace, num_stages: int, wanted: Sequence[str]) -> list[Candidate]:
    """The candidates of a trace where a cut separates no written state; or those that the user named.

    Raises:
        UsageError: when there are too few for `num_stages`, or a named one is impossible.
    """
    objections = {candidate.label: why for candidate in trace.candidates if (why := _objection(trace, candidate))}
    allowed = [candidate for candidate in trace.candidates if candidate.label not in objections]
    if wanted:
        return _named(name, allowed, wanted, num_stages, {**trace.around, **objections})
    narrow = [candidate for candidate in allowed if candidate.is_narrow]
    for enough in (narrow, allowed):
        if len(enough) >= num_stages - 1:
            return enough
    reasons = [
        f"{why}, which forbids {count} cut{'s' * (count > 1)}" for why, count in Counter(objections.values()).items()
    ]
    reasons += [f"{label}: {why}" for label, why in trace.around.items() if "goes around" in why or "reentrant" in why]
    labels = [candidate.label for candidate in allowed]
    where = f"only before {', '.join(labels)}" if labels else "nowhere"
    raise UsageError(
        f"{name} can be cut {where}, so it has at most {len(allowed) + 1} stage{'s' * bool(allowed)}, but "
        f"{num_stages} were requested{f' ({_few(reasons)})' if reasons else ''}.",
        f"Start with -n {len(allowed) + 1}, or a mesh with fewer stages." if allowed else f"{NEAREST}.",
    )


def _objection(trace: Trace, candidate: Candidate) -> str:
    """What a cut would separate although it must not; empty if there is nothing."""
    for buffer, events in trace.written.items():
        if _crosses(events, candidate):
            return f"{buffer} is used on both sides and written to"
    for parameter, copies in trace.cast_once.items():
        if _crosses(trace.parameters[parameter], candidate) and any(made > candidate.event for made in copies):
            return f"{parameter} is used on both sides, and several times in a lower precision"
    for parameter, events in trace.parameters.items():
        if trace.is_reentrant and _crosses(events, candidate):
            return f"{parameter} is used on both sides, and the model is checkpointed with use_reentrant=True"
    return ""


def _crosses(events: Sequence[int], candidate: Candidate) -> bool:
    return min(events) < candidate.event <= max(events)


def _named(
    name: str, allowed: list[Candidate], wanted: Sequence[str], num_stages: int, objections: Mapping[str, str]
) -> list[Candidate]:
    if len(wanted) != num_stages - 1:
        raise UsageError(
            f"cut={list(wanted)} names {len(wanted)} layers that begin a stage, but {num_stages} stages need "
            f"{num_stages - 1}.",
            "Name one layer for each stage but the first.",
        )
    labels = [candidate.label for candidate in allowed]
    for label in wanted:
        if label not in labels:
            several = any(other.startswith(f"{label}:") for other in [*labels, *objections])
            why = objections.get(label) or (
                f"it is called several times, so say which call, such as {label}:2" if several else "it is not called"
            )
            raise UsageError(
                f"No stage of {name} can start at {label!r}: {why}.", f"Choose one of: {_few(labels, 12) or 'none'}."
            )
    return [candidate for candidate in allowed if candidate.label in wanted]


def bytes_between(trace: Trace, candidates: Sequence[Candidate], sizes: Mapping[str, int]) -> list[float]:
    """What the parameters first used between candidates weigh: before the first, between them, and after the last.

    Args:
        candidates: in order.
        sizes: the bytes of each parameter and of its gradient, by name.
    """
    parts = [0.0] * (len(candidates) + 1)
    events = [candidate.event for candidate in candidates]
    for name, used in trace.parameters.items():
        parts[bisect_right(events, min(used))] += sizes[name]
    return parts


def decide_cut(
    trace: Trace,
    candidates: Sequence[Candidate],
    costs: Sequence[float],
    num_stages: int,
    weights: Sequence[float] | None = None,
) -> ModelCut:
    """Balance the stages.

    Args:
        candidates: from `allowed_candidates`.
        costs: seconds between them: one more than candidates.
        weights: what is balanced, as long as `costs`; by default these.
    """
    # A stage begins with a candidate's call, so the bounds are numbers of the costs between candidates.
    bounds = (0, *balance(costs if weights is None else weights, num_stages), len(costs))
    entries: list[Candidate | None] = [None, *(candidates[bound - 1] for bound in bounds[1:-1])]
    begins = [candidate.event if candidate is not None else 0 for candidate in entries]
    ends = [*begins[1:], 1 << 62]

    def stage_of(event: int) -> int:
        return next(stage for stage, end in enumerate(ends) if event < end)

    used = {name: (stage_of(min(events)), stage_of(max(events))) for name, events in trace.parameters.items()}
    holders = {name: first for name, (first, _) in used.items()}
    holders |= {name: stage_of(min(events)) for name, events in trace.written.items()}
    # A buffer that nobody writes may be on several stages; one with a single user is on that stage alone.
    for name, events in trace.constants.items():
        if len(users := {stage_of(event) for event in events}) == 1:
            holders[name] = users.pop()
    stages = []
    for number, (candidate, begin, end) in enumerate(zip(entries, begins, ends, strict=True)):
        elsewhere = (call for call in trace.calls if call.depends and (call.end < begin or call.begin >= end))
        stages.append(
            Stage(
                layers=tuple(_outermost(call for call in trace.calls if begin <= call.begin and call.end < end)),
                skipped=tuple(_outermost(elsewhere)),
                entry=Entry(candidate.module, candidate.number, candidate.carried) if candidate is not None else None,
                borrowed=tuple(name for name, (first, last) in used.items() if first < number <= last),
                cost_s=sum(costs[bounds[number] : bounds[number + 1]]),
            )
        )
    return ModelCut(tuple(stages), holders)


def _outermost(calls: Iterable[Call]) -> list[str]:
    """The calls that are not inside another one, in order; each layer once."""
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
