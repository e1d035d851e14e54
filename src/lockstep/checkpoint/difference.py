"""How two states differ. Only what was found; `comparison` finds it, and a terminal shows it without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class TensorDifference:
    """A tensor that is not the same in both."""

    file: str
    """Without its suffix: model, optimizer, gradients, state."""
    name: str
    left: str
    """Dtype and shape, such as `float32 [16, 8]`; empty where the state has no such tensor."""
    right: str
    num_elements: int = 0
    num_differing: int = 0
    """Elements whose bits differ; 0 where dtypes or shapes do."""
    largest: float | None = None
    """The largest absolute difference between two elements; 0 where only bits differ (-0.0); None where dtypes or shapes do."""


@dataclass(frozen=True)
class ValueDifference:
    """A value that is not the same in both: a counter, an option of an optimizer, a stream, a fact about the writer."""

    path: str
    left: str
    """As JSON; empty where the state has no such value."""
    right: str


@dataclass(frozen=True)
class Differences:
    """Everything that differs, and how much was compared."""

    left: str
    right: str
    tensors: tuple[TensorDifference, ...]
    values: tuple[ValueDifference, ...]
    written: tuple[ValueDifference, ...]
    """Who wrote the states: ranks, lanes, strategy, versions. Equal states may have different writers."""
    num_tensors: int
    num_values: int

    @property
    def same(self) -> bool:
        """Whether both have the same bits."""
        return not (self.tensors or self.values)

    def as_json(self) -> Mapping[str, Any]:
        """For --json: numbers that JSON cannot express are texts."""
        told = asdict(self)
        for one in told["tensors"]:
            if one["largest"] is not None and not math.isfinite(one["largest"]):
                one["largest"] = str(one["largest"])
        return {**told, "same": self.same}
