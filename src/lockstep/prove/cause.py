"""The usual cause of a difference, in one sentence: a pure function of where it appears first and of what shape it has.

Nobody can prove a cause from hashes; these are the mistakes that usually look so, most specific first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lockstep.prove.evidence import Kind

RANDOM = (
    "random numbers or samples depend on the rank: a seed or generator made from the rank, a data set with a "
    "generator of its own, or code that looks at run.rank or the time. Draw from the global streams, or seed with run.seed(...)."
)
LATER = (
    "nothing that was compared differed in the steps before, so it comes from what has no state_dict: random numbers or "
    "samples that depend on the rank from here on, or values that the script keeps between steps."
)
MULTIPLIED = (
    "the {what} is multiplied by the number of ranks. lockstep averages over the lanes already: leave out the factor "
    "`world_size`."
)
DIVIDED = (
    "the {what} is divided by the number of ranks. lockstep averages over the lanes already: leave out the factor."
)


@dataclass(frozen=True)
class Symptoms:
    """What is known about the first difference."""

    kind: Kind
    """Of the first item that differs."""
    step: int
    ranks: tuple[int, int]
    """The numbers of ranks of the two runs; equal for replicas of one run."""
    among_replicas: bool
    """Whether ranks of the same run differ from each other."""
    ratio: float | None = None
    """Second by first, where it is the same for all elements."""
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Optimizer settings (not tensors) that differ in that step, with both values."""
    only_one_side: bool = False
    """Whether one side has no such item at all."""
    repeatable: bool = True
    """Whether a second run of the same configuration gave the same bits."""


def usual_cause(symptoms: Symptoms) -> str:
    """One sentence, without a capital letter, that ends with a full stop."""
    if not symptoms.repeatable:
        return (
            "the script is not repeatable even with itself: run again with the same ranks it gave other bits. It uses "
            "the time, an unseeded generator, the order of files or of a set, or several threads of its own."
        )
    if symptoms.only_one_side:
        return (
            "the script makes or skips it depending on the number of ranks; look for `world_size`, `rank`, `is_main`."
        )
    if symptoms.among_replicas:
        return _AMONG_REPLICAS[symptoms.kind]
    return _between_runs(symptoms)


_AMONG_REPLICAS = {
    Kind.LOSS: "a rank computed its own loss from the exchanged one. Please report this: it should not be possible.",
    Kind.GRADIENT: "a rank changed its gradient after the exchange (a hook, or code under `if rank == 0`).",
    Kind.NORM: "a rank changed its gradient after the exchange (a hook, or code under `if rank == 0`).",
    Kind.BUFFER: (
        "a rank wrote buffers of its own, such as BatchNorm statistics of its own samples, or only rank 0 did. "
        "lockstep averages running statistics over the lanes; leave the buffers alone, or write the same on every rank."
    ),
    Kind.PARAMETER: (
        "the update is not the same on every rank: clipping by a rank's own norm, settings or code under "
        "`if rank == 0`, or a write to the parameters on one rank."
    ),
    Kind.OPTIMIZER: "the optimizer's settings or state depend on the rank.",
    Kind.SCRIPT: (
        "this object is updated from a rank's own samples, or on some ranks only. Update it from global values "
        "(step.loss, run.tally()), on every rank."
    ),
    Kind.VALUE: "each rank logged a value of its own samples. Use run.tally(), or log inside of the lanes.",
}


def _between_runs(symptoms: Symptoms) -> str:
    if symptoms.kind is Kind.LOSS:
        return _scaled("loss", symptoms) or (RANDOM if symptoms.step == 1 else LATER)
    if symptoms.kind in (Kind.GRADIENT, Kind.NORM):
        return _scaled("gradient", symptoms) or (
            "losses are equal but gradients are not: a hook on gradients, or a backward of your own, that uses random "
            "numbers or the rank."
        )
    if symptoms.kind is Kind.BUFFER:
        return (
            "buffers come from the samples of one rank only: BatchNorm statistics of rank 0, broadcast or written by "
            "hand. lockstep averages running statistics over the lanes; leave them alone."
        )
    if symptoms.kind is Kind.VALUE:
        return _value(symptoms)
    if symptoms.settings:
        name, (left, right) = next(iter(symptoms.settings.items()))
        return (
            f"the {name} depends on the number of ranks: {left} with {symptoms.ranks[0]} and {right} with "
            f"{symptoms.ranks[1]}. The batch is the same on any number of ranks, so leave out the scaling."
        )
    return _UPDATE[symptoms.kind]


_UPDATE = {
    Kind.PARAMETER: (
        "the same gradient is used differently: it, the parameters or the learning rate are changed between the lanes "
        "and optimizer.step() by something that depends on the ranks (a scaling, clipping by a rank's own norm)."
    ),
    Kind.OPTIMIZER: "the optimizer's settings or state depend on the number of ranks.",
    Kind.SCRIPT: (
        "this object of the script is updated with values that depend on the ranks: a rank's own loss or samples, or "
        "once per lane. Update it from global values (step.loss, run.tally()), once per step."
    ),
}


def _value(symptoms: Symptoms) -> str:
    if _scaled("value", symptoms):
        return "the value is a sum over ranks, not a mean: divide by what it counts, or use run.tally()."
    return (
        "a metric is averaged over shares of different size (run.mean counts every rank the same, whatever its number "
        "of samples). Use run.tally(), which weights by samples."
    )


def _scaled(what: str, symptoms: Symptoms) -> str | None:
    first, second = symptoms.ranks
    if symptoms.ratio is None or first == second:
        return None
    if _close(symptoms.ratio, second / first):
        return MULTIPLIED.format(what=what)
    if _close(symptoms.ratio, first / second):
        return DIVIDED.format(what=what)
    return None


def _close(value: float, expected: float) -> bool:
    return abs(value / expected - 1.0) < 1e-3
