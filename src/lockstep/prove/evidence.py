"""What the ranks of a run recorded, read back: for each step the items in the order in which a difference would spread.

An item is a name such as `gradient fc.weight`; its first word is its kind. Its value is a hash of a tensor, a number in
hexadecimal, or the text of something else; equal texts mean equal bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from lockstep.layout.run_folder import RunFolder


class Kind(StrEnum):
    """What an item is; the values are the first words of the items that the witness writes."""

    LOSS = "loss"
    GRADIENT = "gradient"
    NORM = "norm"
    BUFFER = "buffer"
    PARAMETER = "parameter"
    OPTIMIZER = "optimizer"
    SCRIPT = "script"
    VALUE = "value"


@dataclass(frozen=True)
class Place:
    """An item at a step."""

    step: int
    item: str

    @property
    def kind(self) -> Kind:
        return Kind(self.item.partition(" ")[0])


Recorded = Mapping[Place, str]
"""Everything that one rank recorded, in order."""


@dataclass(frozen=True)
class Evidence:
    """What a run recorded."""

    ranks: tuple[Recorded, ...]

    @property
    def num_steps(self) -> int:
        """Steps that rank 0 finished."""
        return max((place.step for place in self.ranks[0] if place.kind is Kind.PARAMETER), default=0)


def parse(lines: Iterator[str]) -> Recorded:
    """The items of one rank's file; the first one counts where a name comes twice."""
    recorded: dict[Place, str] = {}
    for line in lines:
        entry = json.loads(line)
        for item, value in entry["items"].items():
            recorded.setdefault(Place(entry["step"], item), value)
    return recorded


def read_evidence(folder: RunFolder, num_ranks: int) -> Evidence:
    """Read what all ranks of a finished run recorded; a rank that recorded nothing has an empty mapping.

    Where a model is cut into stages, each rank has recorded its own part; it is completed by the other stages' parts.
    """
    decided = json.loads(folder.decided.read_text()) if folder.decided.exists() else {}
    ranks = [_read(folder.evidence(rank)) for rank in range(num_ranks)]
    return Evidence(tuple(complete(ranks, int(decided.get("stages", 1)))))


def complete(ranks: Sequence[Recorded], stages: int) -> list[Recorded]:
    """Each rank's recording with what only other stages of its replica have; its own values stay.

    Invariant: with one stage, and for empty recordings, nothing changes.
    """
    if stages == 1:
        return list(ranks)
    completed = []
    for rank, own in enumerate(ranks):
        first = rank // stages * stages
        whole = {place: value for other in ranks[first : first + stages] for place, value in other.items()}
        completed.append({**whole, **own} if own else own)
    return completed


def _read(path: Path) -> Recorded:
    if not path.exists():
        return {}
    with path.open() as file:
        return parse(file)


def number_of(value: str) -> float | None:
    """The number that a value is, or None for a hash or a text.

    A hash has 32 hexadecimal digits without a point; a number is written as `0x1.8p+1`.
    """
    if value.startswith(("0x", "-0x")) or value in ("nan", "inf", "-inf"):
        return float.fromhex(value)
    try:
        return float(int(value)) if len(value) < 20 else None
    except ValueError:
        return None
