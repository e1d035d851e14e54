"""What the ranks of a run recorded, read back: for each step the items in the order in which a difference would spread.

An item is a name such as `gradient fc.weight`; its first word is its kind. Its value is a hash of a tensor, a number in
hexadecimal, or the text of something else; equal texts mean equal bits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from samebits.protocol.recording import AT_END, NAN_MARK
from samebits.protocol.run_folder import RunFolder

T = TypeVar("T")


class Kind(StrEnum):
    """What an item is; the values are the first words of the items that the recorder writes."""

    INITIAL = "initial"
    """Parameters and buffers before the first step."""
    SAMPLES = "samples"
    """Samples of one lane, recorded by the rank that carries it."""
    LOSS = "loss"
    GRADIENT = "gradient"
    NORM = "norm"
    BUFFER = "buffer"
    PARAMETER = "parameter"
    OPTIMIZER = "optimizer"
    SCRIPT = "script"
    VALUE = "value"
    """What the script logged, and what tallies, `run.gather`, `run.lane_sum` and the like returned."""
    AGAIN = "again"
    """Samples that were fetched a second time, likewise."""
    RESUMED = "resumed"
    """What a step begins with, of what a state holds: recorded where a run resumes."""
    OWN = "own"
    """What the script holds then besides."""
    VARIABLE = "variable"
    """A plain value in a variable of the script then. No evidence: a clock or a path may differ."""


OF_ONE_RANK = (Kind.SAMPLES, Kind.AGAIN)
"""Kinds that one rank records for all."""
_HASH = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class ItemAtStep:
    """An item at a step."""

    step: int
    """`AT_END` after the last step."""
    item: str

    def __str__(self) -> str:
        return f"{self.when}, {self.item}"

    @property
    def when(self) -> str:
        """The step in words."""
        if self.kind is Kind.INITIAL or self.step == 0:
            return "before the first step"
        if self.kind in (Kind.RESUMED, Kind.OWN, Kind.VARIABLE):
            return f"after step {self.step}"
        return "at the end" if self.step == AT_END else f"step {self.step}"

    @property
    def kind(self) -> Kind:
        return Kind(self.item.partition(" ")[0])

    @property
    def layer(self) -> str:
        """The layer that a tensor of a model belongs to, by its name; empty where it has none."""
        if self.kind not in (Kind.INITIAL, Kind.GRADIENT, Kind.BUFFER, Kind.PARAMETER, Kind.OPTIMIZER):
            return ""
        words = self.item.partition(" (")[0].split()
        of_parameter = self.kind is not Kind.OPTIMIZER or words[-2:-1] == ["of"]
        return words[-1].rpartition(".")[0] if of_parameter else ""


Recorded = Mapping[ItemAtStep, str]
"""Everything that one rank recorded, in order."""


@dataclass(frozen=True)
class End:
    """How far a run came after the last step that was wanted."""

    over: bool = False
    """Whether all wanted steps were recorded, so that the loops ended as if the data were over."""
    reached: bool = False
    """Whether the script reached its end."""
    why: str = ""
    """Why not, if a rank knows."""
    is_reversed: bool = False
    """Whether it went through its lanes backwards."""


@dataclass(frozen=True)
class Evidence:
    """What a run recorded."""

    ranks: tuple[Recorded, ...]
    end: End = field(default_factory=End)
    norms: Mapping[ItemAtStep, float] = field(default_factory=dict)
    """Norms of tensors, where they were wanted."""

    @property
    def num_steps(self) -> int:
        """Steps that rank 0 finished."""
        steps = (place.step for place in self.ranks[0] if place.kind is Kind.PARAMETER and place.step != AT_END)
        return max(steps, default=0)

    @property
    def first_nan(self) -> ItemAtStep | None:
        """Where a NaN appears first in what rank 0 recorded."""
        return next((place for place, value in self.ranks[0].items() if is_nan(value)), None)

    def until(self, step: int) -> Evidence:
        """The evidence without everything after `step`, including the end."""
        ranks = tuple({place: value for place, value in rank.items() if place.step <= step} for rank in self.ranks)
        return replace(self, ranks=ranks, end=End())


def parse(lines: Iterator[str]) -> dict[ItemAtStep, str]:
    """The items of one rank's file; if a name comes twice, the first one counts."""
    recorded: dict[ItemAtStep, str] = {}
    for line in lines:
        entry = json.loads(line)
        for item, value in entry.get("items", {}).items():
            recorded.setdefault(ItemAtStep(entry["step"], item), value)
    return recorded


def parse_norms(lines: Iterator[str]) -> dict[ItemAtStep, float]:
    """The norms in one rank's file."""
    entries = map(json.loads, lines)
    return {
        ItemAtStep(entry["step"], item): float.fromhex(norm)
        for entry in entries
        for item, norm in entry.get("norms", {}).items()
    }


def read_evidence(folder: RunFolder, num_ranks: int) -> Evidence:
    """Read what all ranks of a finished run recorded; a rank that recorded nothing has an empty mapping.

    Where a model is cut into stages, each rank has recorded its own part; it is completed by the other stages' parts.
    """
    decided = json.loads(folder.decided.read_text()) if folder.decided.exists() else {}
    ranks = [_read(folder.evidence(rank), parse) for rank in range(num_ranks)]
    whole = complete(with_samples_of_all(ranks), decided.get("replicas", ()))
    # Reversed: where several ranks have a norm of one place, that of the first counts.
    norms = [_read(folder.evidence(rank), parse_norms) for rank in reversed(range(num_ranks))]
    return Evidence(
        tuple(whole), _end(folder, num_ranks), {place: norm for one in norms for place, norm in one.items()}
    )


def _end(folder: RunFolder, num_ranks: int) -> End:
    """The end that every rank has reached."""
    record = [json.loads(path.read_text()) for path in map(folder.ending, range(num_ranks)) if path.exists()]
    whole = len(record) == num_ranks
    why = next((one["why"] for one in record if one["why"]), "")
    is_reversed = whole and all(one["reversed"] for one in record)
    return End(over=whole, reached=whole and all(one["reached"] for one in record), why=why, is_reversed=is_reversed)


def with_samples_of_all(ranks: Sequence[Recorded]) -> list[Recorded]:
    """Each rank's recording with the samples of all lanes before their step; its own values stay.

    Invariant: items of other kinds that a rank recorded stay, in their order; an empty recording stays empty.
    """
    # [Note: why samples are shared among recordings]
    # Each lane's samples are recorded by the rank that carries it. Which rank that is depends on the number of ranks, so
    # recordings of different runs can be compared only when each has all lanes.
    shared = {place: value for rank in ranks for place, value in rank.items() if place.kind in OF_ONE_RANK}
    by_step: dict[int, dict[ItemAtStep, str]] = {}
    for place in sorted(shared, key=lambda place: (place.step, _natural(place.item))):
        by_step.setdefault(place.step, {})[place] = shared[place]
    return [_with_samples(rank, by_step) for rank in ranks]


def _with_samples(own: Recorded, samples: Mapping[int, Recorded]) -> Recorded:
    found: dict[ItemAtStep, str] = {}
    seen: set[int] = set()
    for place, value in own.items():
        if place.step not in seen:
            seen.add(place.step)
            found |= {sample: own.get(sample, other) for sample, other in samples.get(place.step, {}).items()}
        found.setdefault(place, value)
    return found


def _natural(item: str) -> list[tuple[int, str]]:
    """A key that puts lane 10 after lane 2."""
    return [(int(word.strip(",")), "") if word.strip(",").isdigit() else (-1, word) for word in item.split()]


def complete(ranks: Sequence[Recorded], replicas: Sequence[Sequence[int]]) -> list[Recorded]:
    """Each rank's recording, completed with what only other stages of its replica have; its own values stay.

    Invariant: with one stage, and for empty recordings, nothing changes.

    Args:
        ranks: what each has recorded.
        replicas: the ranks of each replica of the model.
    """
    completed = list(ranks)
    for members in replicas:
        whole = {place: value for member in members for place, value in ranks[member].items()}
        for member in members:
            own = ranks[member]
            completed[member] = {**whole, **own} if own and len(members) > 1 else own
    return completed


def _read(path: Path, parsed: Callable[[Iterator[str]], dict[ItemAtStep, T]]) -> dict[ItemAtStep, T]:
    if not path.exists():
        return {}
    with path.open() as file:
        return parsed(file)


def is_hash(value: str) -> bool:
    """Whether it is the hash of a tensor, not a number or a text."""
    return _HASH.fullmatch(value.removesuffix(NAN_MARK)) is not None


def is_nan(value: str) -> bool:
    """Whether it is a NaN, or the hash of a tensor with one in it."""
    return value == "nan" or value.endswith(NAN_MARK)


def number_of(value: str) -> float | None:
    """The value as a number, or None for a hash or a text.

    A hash has 32 hexadecimal digits without a point; a number is written as `0x1.8p+1`.
    """
    if is_hash(value):
        return None
    if value.startswith(("0x", "-0x")) or value in ("nan", "inf", "-inf"):
        return float.fromhex(value)
    try:
        return float(int(value)) if len(value) < 20 else None
    except ValueError:
        return None


def readable(value: str | None) -> str:
    """The value for a person: a number in decimal digits, everything else as it is."""
    number = number_of(value) if value is not None and "0x" in value else None
    return repr(number) if number is not None else value if value is not None else "nothing"
