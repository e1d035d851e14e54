"""An epoch's order, cut into steps when they are asked for: one of a million samples begins as soon as it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from lockstep.protocol.layout.cut import num_steps

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class CutOrder(Sequence[list[int]]):
    """The steps of an order of whole numbers.

    Args:
        order: 1-D, the samples of all steps.
        batch_size: samples of a step; only the last may have fewer.
    """

    def __init__(self, order: Numbers, batch_size: int) -> None:
        self.order, self.batch_size = order, batch_size

    @classmethod
    def of(cls, order: Numbers, batch_size: int, drop_last: bool) -> CutOrder:
        """Cut an epoch's order; `drop_last` leaves a short last step out."""
        return cls(order[: num_steps(len(order), batch_size, drop_last) * batch_size], batch_size)

    @property
    def sizes(self) -> list[int]:
        """The number of samples of each step."""
        full, left = divmod(len(self.order), self.batch_size)
        return [self.batch_size] * full + [left] * bool(left)

    def between(self, low: int, high: int) -> Numbers:
        """What lies between these positions of each step."""
        full = len(self.order) // self.batch_size * self.batch_size
        whole = self.order[:full].reshape(-1, self.batch_size)[:, low:high].reshape(-1)
        return np.concatenate([whole, self.order[full:][low:high]])

    def __len__(self) -> int:
        return (len(self.order) + self.batch_size - 1) // self.batch_size

    @overload
    def __getitem__(self, place: int) -> list[int]: ...
    @overload
    def __getitem__(self, place: slice) -> CutOrder: ...
    def __getitem__(self, place: int | slice) -> list[int] | CutOrder:
        if isinstance(place, slice):
            first, end, _ = place.indices(len(self))
            return CutOrder(self.order[first * self.batch_size : max(first, end) * self.batch_size], self.batch_size)
        first = range(len(self))[place] * self.batch_size
        samples: list[int] = self.order[first : first + self.batch_size].tolist()
        return samples

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
