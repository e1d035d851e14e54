"""The usual cause of a difference, in one sentence: a pure function of where it first appears and what it looks like.

Nobody can prove a cause from hashes; these are the mistakes that usually look like this, most specific first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from samebits.protocol.recording import AT_END
from samebits.verify.evidence import ItemAtStep, Kind

NOT_REPEATABLE = (
    "the script is not repeatable: run again with the same ranks, it gave different bits. It uses "
    "the time, an unseeded generator, the order of files or of a set, or threads of its own."
)
ONE_SIDED = "the script makes or skips it depending on the number of ranks; look for `world_size`, `rank`, `is_main`."
SAMPLES = (
    "the data set or its random numbers depend on the rank: a generator or seed of its own, earlier samples that it "
    "remembers (a cache of augmented samples, in-place writes), or code that uses the rank, the time or the worker. "
    "Draw from the global streams, and return the same sample for the same index."
)
REMEMBERS = (
    "the data set remembers earlier samples: asked for the same ones again, it returns others, depending on what the "
    "process fetched before. It keeps augmented samples, writes to them in place, mixes each with the one before, "
    "or has its own generator or counter. From the second epoch on, the bits depend on the ranks. Return a new sample "
    "for each index, drawn from the global streams."
)
RANDOM = (
    "random numbers depend on the rank (the lanes' samples are the same): a seed or generator made from the rank, or "
    "code that uses run.rank or the time. Or a lane uses what the lane before it left in a Python or NumPy variable. "
    "Draw from the global streams, or seed with run.seed(...)."
)
LATER = (
    "nothing compared in earlier steps differed, and the lanes' samples are the same, so it comes from what "
    "has no state_dict: random numbers that depend on the rank from here on, or values that the script keeps "
    "between steps or lanes."
)
INITIAL = (
    "the models are built differently: after random numbers that depend on the number of ranks, or with a seed, a "
    "width or a file that does. Build them right after samebits.init(), without using `world_size`."
)
ADVICE = (
    "On other numbers of ranks a lane follows another one, or none. Take what all lanes made behind them (run.lane_sum, "
    "run.lane_cat, run.tally), or keep a value for each lane in run.per_lane."
)
HANDED_ON = (
    "lanes hand on {what}: one rank gives other bits too where a step's lanes come in another order. Draw from the global "
    "streams, or seed with run.seed(...). " + ADVICE
)
SOMETHING = "something, in a variable or in a random generator of the script's own"
ONLY_NAN = (
    "both are NaN, and only the NaN's bits differ: its sign and payload depend on which operand comes first, and mean "
    "nothing. The first NaN is at {first}. Find what makes it (torch.autograd.set_detect_anomaly(True)); nothing after "
    "it can be proved."
)
MULTIPLIED = (
    "the {what} is multiplied by the number of ranks. samebits averages over the lanes already: leave out the factor "
    "`world_size`."
)
DIVIDED = (
    "the {what} is divided by the number of ranks. samebits averages over the lanes already: leave out the factor."
)

RANK_ORDER = (
    "floats are added up rank by rank, so each number of ranks rounds in another way (the values are the same but for "
    "that). Use run.lane_sum for tensors that the lanes made, run.tally() for numbers."
)
OF_SAMPLES = ("run.gather", "run.lane_sum", "run.lane_cat")
"""What puts together what samples and lanes gave: equal on any number of ranks, if that is."""
GIVEN = (
    "what {call} was given depends on the number of ranks: it was computed with run.rank or run.world_size, or with what "
    "other batches left in a variable. Compute each row or tensor from its own samples."
)
ROUNDING = 1e-4
"""Sums that differ by less than this, relative to the largest element, differ by their order. float32 has 6e-8 for each term."""


@dataclass(frozen=True)
class Symptoms:
    """What is known about the first difference."""

    place: ItemAtStep
    """The first item that differs."""
    ranks: tuple[int, int]
    """The numbers of ranks of the two runs; equal for replicas of one run, 0 for a file."""
    among_replicas: bool = False
    """Whether ranks of the same run differ from each other."""
    ratio: float | None = None
    """Second divided by first, if it is the same for all elements."""
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Optimizer settings (not tensors) that differ in that step, with both values."""
    relative: float | None = None
    """The largest difference relative to the largest element, if it is known."""
    only_one_side: bool = False
    """Whether one side has no such item at all."""
    repeatable: bool = True
    """Whether a second run of the same configuration gave the same bits."""
    only_nan: bool = False
    """Whether both sides are NaN and differ only in the bits of the NaN."""
    first_nan: ItemAtStep | None = None
    """Where a NaN appears first."""
    since: str = ""
    """The file, if the second side is one; empty for a run."""
    facts: tuple[str, ...] = ()
    """What differs between where the file was written and here."""
    hands_on: bool = False
    """Whether one rank gives other bits where its lanes come in another order."""
    handed_on: tuple[str, ...] = ()
    """What a look saw lanes hand on."""

    @property
    def kind(self) -> Kind:
        """The kind of the first item that differs."""
        return self.place.kind

    @property
    def may_be_handed_on(self) -> bool:
        """Whether what lanes hand on could look like this."""
        of_lanes = self.kind in (Kind.LOSS, Kind.GRADIENT, Kind.NORM) and self.place.step != AT_END
        return of_lanes and not (
            self.among_replicas or self.only_one_side or self.only_nan or self.since or _scaled("", self)
        )


def usual_cause(symptoms: Symptoms) -> str:
    """The usual cause in one sentence or a few; no capital letter at the start, a full stop at the end."""
    # Nothing else can be concluded from a script that does not repeat itself, or after a NaN.
    if not symptoms.repeatable:
        return NOT_REPEATABLE
    if symptoms.only_nan:
        return ONLY_NAN.format(first=symptoms.first_nan or symptoms.place)
    if symptoms.since:
        return _since(symptoms)
    if symptoms.hands_on and symptoms.may_be_handed_on:
        return HANDED_ON.format(what=", ".join(symptoms.handed_on) or SOMETHING)
    if symptoms.only_one_side or symptoms.kind is Kind.AGAIN:
        return REMEMBERS if symptoms.kind is Kind.AGAIN else ONE_SIDED
    found = _AMONG_REPLICAS[symptoms.kind] if symptoms.among_replicas else _between_runs(symptoms)
    return _BEHIND + found if symptoms.place.step == AT_END else found


_BEHIND = "the code after the last step is to blame: "


def _since(symptoms: Symptoms) -> str:
    """What changed since a file was written."""
    if symptoms.facts:
        return (
            f"the conditions differ: {'; '.join(symptoms.facts)}. Other libraries, CPUs, threads and lanes round "
            f"differently; the size of the difference shows whether that is all."
        )
    if symptoms.only_one_side:
        return "the model, its optimizer or what the script logs has different parts or names now."
    if symptoms.place.step == AT_END and symptoms.kind is not Kind.AGAIN:
        return "the code after the last step does something different now."
    return _SINCE[symptoms.kind]


_SINCE = {
    Kind.INITIAL: (
        "the models are built differently now: other layers, another order of layers (each draws random numbers in "
        "turn), another seed, or other weights in a file."
    ),
    Kind.SAMPLES: "the data, its order or its augmentation has changed.",
    Kind.AGAIN: "the data, its order or its augmentation has changed.",
    Kind.LOSS: "the weights and samples are the same, so the forward or the loss computes something different now.",
    Kind.GRADIENT: "the losses are the same, so the backward computes something different now.",
    Kind.NORM: "the losses are the same, so the backward computes something different now.",
    Kind.BUFFER: "the gradients are the same, so a layer updates its buffers differently now.",
    Kind.PARAMETER: "the gradients are the same, so the update has changed: the optimizer, its settings or clipping.",
    Kind.OPTIMIZER: "the gradients are the same, so the optimizer or its settings have changed.",
    Kind.SCRIPT: "training is the same, but this object of the script is updated differently now.",
    Kind.VALUE: "training is the same, but what the script logs has changed.",
}


_AMONG_REPLICAS = {
    Kind.INITIAL: "the ranks made different models. Please report this: it should not be possible.",
    Kind.SAMPLES: SAMPLES,
    Kind.LOSS: "a rank computed its own loss from the exchanged one. Please report this: it should not be possible.",
    Kind.GRADIENT: "a rank changed its gradient after the exchange (a hook, or code under `if rank == 0`).",
    Kind.NORM: "a rank changed its gradient after the exchange (a hook, or code under `if rank == 0`).",
    Kind.BUFFER: (
        "a rank wrote buffers of its own, such as BatchNorm statistics of its own samples, or only rank 0 did. "
        "samebits averages running statistics over the lanes; leave the buffers alone, or write the same on every rank."
    ),
    Kind.PARAMETER: (
        "the update is not the same on every rank: clipping by a rank's own norm, settings or code under "
        "`if rank == 0`, or a write to the parameters on one rank."
    ),
    Kind.OPTIMIZER: "the optimizer's settings or state depend on the rank.",
    Kind.SCRIPT: (
        "this object is updated from a rank's own samples, or only on some ranks. Update it from global values "
        "(step.loss, run.tally()), on every rank."
    ),
    Kind.VALUE: "each rank logged a value of its own samples. Use run.tally(), or log inside the lanes.",
}


def _between_runs(symptoms: Symptoms) -> str:
    if symptoms.kind is Kind.LOSS:
        return _scaled("loss", symptoms) or (RANDOM if symptoms.place.step == 1 else LATER)
    if symptoms.kind in (Kind.GRADIENT, Kind.NORM):
        return _scaled("gradient", symptoms) or (
            "losses are equal but gradients are not: a hook on gradients, or a custom backward, that uses random "
            "numbers or the rank."
        )
    if symptoms.kind is Kind.BUFFER:
        return (
            "buffers come from the samples of one rank only: BatchNorm statistics of rank 0, broadcast or written by "
            "hand; or from a float sum in rank order. samebits averages running statistics over the lanes; leave them "
            "alone, and add up others by run.lane_sum."
        )
    if symptoms.kind is Kind.VALUE:
        return _value(symptoms)
    if symptoms.settings:
        name, (left, right) = next(iter(symptoms.settings.items()))
        return (
            f"the {name} depends on the number of ranks: {left} with {symptoms.ranks[0]} and {right} with "
            f"{symptoms.ranks[1]}. The batch is the same on any number of ranks, so leave out the scaling."
        )
    return _OTHERWISE[symptoms.kind]


_OTHERWISE = {
    Kind.INITIAL: INITIAL,
    Kind.SAMPLES: SAMPLES,
    Kind.PARAMETER: (
        "the same gradient is used differently: it, the parameters or the learning rate are changed between the lanes "
        "and optimizer.step() by something that depends on the ranks (a scaling, clipping by a rank's own norm)."
    ),
    Kind.OPTIMIZER: "the optimizer's settings or state depend on the number of ranks.",
    Kind.SCRIPT: (
        "this object of the script is updated with values that depend on the ranks: a rank's own loss or samples, once "
        "per lane, or a float sum in rank order. Update it from global values (step.loss, run.tally(), run.lane_sum), once "
        "per step."
    ),
}


def _value(symptoms: Symptoms) -> str:
    call = symptoms.place.item.removeprefix("value ").partition(" at ")[0]
    if call in OF_SAMPLES:
        return GIVEN.format(call=call)
    is_combined = symptoms.place.item.startswith(("value run.sum at ", "value run.mean at "))
    if is_combined and symptoms.relative is not None and symptoms.relative < ROUNDING:
        return RANK_ORDER
    if _scaled("value", symptoms):
        return "the value is a sum over ranks, not a mean: divide by what it counts, or use run.tally()."
    return (
        "a metric is averaged over shares of different sizes (run.mean counts every rank the same, whatever its number "
        "of samples). Use run.tally(), which weights by samples."
    )


def _scaled(what: str, symptoms: Symptoms) -> str | None:
    first, second = symptoms.ranks
    # On equal numbers of ranks a ratio has another reason.
    if symptoms.ratio is None or first == second:
        return None
    if _close(symptoms.ratio, second / first):
        return MULTIPLIED.format(what=what)
    if _close(symptoms.ratio, first / second):
        return DIVIDED.format(what=what)
    return None


def _close(value: float, expected: float) -> bool:
    return abs(value / expected - 1.0) < 1e-3
