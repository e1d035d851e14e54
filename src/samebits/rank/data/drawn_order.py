"""The order of an epoch that is drawn as it goes: of torch's RandomSampler, asked for millions of samples.

An "infinite" loader is one whose sampler is asked for 10**10 of them. torch draws them in turn from one generator, so any
piece can be drawn again from the generator's state at the piece before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import RandomSampler

from samebits.protocol.layout.cut import num_steps

Numbers = np.ndarray[Any, np.dtype[np.int64]]

MANY = 1 << 20
"""An order of so many samples is drawn at once, in 10 ms or so."""
PIECE = 1 << 16
"""With replacement torch draws 32 numbers at a time, which are those of larger pieces too."""
KEPT = 16
"""The pieces, and the states of the generator, that are kept of the last places; workers fetch ahead of the loop."""


class Pieces:
    """An endless row of samples.

    Args:
        seed: of the generator.
        draw: the next piece.
        length: samples of a piece.
    """

    def __init__(self, seed: int, draw: Callable[[torch.Generator], Tensor], length: int) -> None:
        self.seed, self._draw, self._length = seed, draw, length
        self._generator = torch.Generator()
        self._generator.manual_seed(seed)
        self._states = {0: self._generator.get_state()}
        """Those before some pieces, by number; always that before the first one."""
        self._pieces: dict[int, Numbers] = {}

    def between(self, first: int, end: int) -> Numbers:
        """The samples from one position up to another."""
        numbers = range(first // self._length, -(-end // self._length))
        found = [self._piece(number) for number in numbers]
        start = numbers.start * self._length
        return np.concatenate(found)[first - start : end - start] if found else np.empty(0, np.int64)

    def _piece(self, number: int) -> Numbers:
        if number not in self._pieces:
            nearest = max(place for place in self._states if place <= number)
            self._generator.set_state(self._states[nearest])
            for each in range(nearest, number + 1):
                piece = self._draw(self._generator).numpy()
                self._states.pop(each + 1, None)
                self._states[each + 1] = self._generator.get_state()
                self._pieces[each] = piece
                self._forget()
        return self._pieces[number]

    def _forget(self) -> None:
        while len(self._pieces) > KEPT:
            del self._pieces[next(iter(self._pieces))]
        while len(self._states) > KEPT + 1:
            del self._states[next(place for place in self._states if place)]


class DrawnOrder(Sequence[list[int]]):
    """Steps of such an order.

    Args:
        pieces: where the samples come from.
        size: the samples of the data set.
        batch_size: samples of a step; only the last may have fewer.
        first: the position of the first step's first sample.
        end: the position behind the last step's last sample.
    """

    def __init__(self, pieces: Pieces, size: int, batch_size: int, first: int, end: int) -> None:
        self._pieces, self._size, self.batch_size, self._first, self._end = pieces, size, batch_size, first, end

    @classmethod
    def of(cls, sampler: RandomSampler, batch_size: int, drop_last: bool) -> DrawnOrder:
        """The order of an epoch; takes a number from the global generator, as RandomSampler does."""
        size, seed = len(sampler.data_source), int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
        if sampler.replacement:
            pieces = Pieces(seed, lambda one: torch.randint(size, (PIECE,), generator=one, device="cpu"), PIECE)
        else:
            pieces = Pieces(seed, lambda one: torch.randperm(size, generator=one, device="cpu"), size)
        most = num_steps(sampler.num_samples, batch_size, drop_last) * batch_size
        return cls(pieces, size, batch_size, 0, min(most, sampler.num_samples))

    @property
    def counts(self) -> dict[int, int]:
        """How many steps have each number of samples."""
        full, left = divmod(self._end - self._first, self.batch_size)
        return {size: number for size, number in ((self.batch_size, full), (left, 1)) if size and number}

    @property
    def sizes(self) -> list[int]:
        """The number of samples of each step."""
        return [size for size, number in self.counts.items() for _ in range(number)]

    @property
    def text(self) -> bytes:
        """Equal for two that have the same samples in the same order."""
        return repr((self._pieces.seed, self._size, self.batch_size, self._first, self._end)).encode()

    def between(self, low: int, high: int) -> Numbers:
        """What lies between these positions of each step."""
        order = self._pieces.between(self._first, self._end)
        full = len(order) // self.batch_size * self.batch_size
        whole = order[:full].reshape(-1, self.batch_size)[:, low:high].reshape(-1)
        return np.concatenate([whole, order[full:][low:high]])

    def __len__(self) -> int:
        return (self._end - self._first + self.batch_size - 1) // self.batch_size

    @overload
    def __getitem__(self, place: int) -> list[int]: ...
    @overload
    def __getitem__(self, place: slice) -> DrawnOrder: ...
    def __getitem__(self, place: int | slice) -> list[int] | DrawnOrder:
        if isinstance(place, slice):
            start, stop, _ = place.indices(len(self))
            first = min(self._first + start * self.batch_size, self._end)
            end = min(self._first + max(start, stop) * self.batch_size, self._end)
            return DrawnOrder(self._pieces, self._size, self.batch_size, first, end)
        first = self._first + range(len(self))[place] * self.batch_size
        samples: list[int] = self._pieces.between(first, min(first + self.batch_size, self._end)).tolist()
        return samples


def is_drawn(sampler: object) -> bool:
    """Whether the order of a sampler is drawn as it goes."""
    return (
        isinstance(sampler, RandomSampler)
        and type(sampler).__iter__ is RandomSampler.__iter__
        and sampler.generator is None
        and sampler.num_samples > MANY
        and (sampler.replacement or sampler.num_samples != len(sampler.data_source))
    )
