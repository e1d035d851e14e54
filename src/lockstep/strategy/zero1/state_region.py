"""One rank's share of an optimizer's state, in memory that other ranks read when it is dead.

    three numbers                 how many updates it has made, where the description ends, where the tensors begin
    the description, JSON         for each of the rank's parameters, each value: a number, a text, or where a tensor is
    the tensors                   the optimizer's own, which it updates there

The first number is odd while the rank is at work, so nobody takes a share that is half updated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from lockstep.strategy.other_users import used_elsewhere
from lockstep.strategy.replica.arena import alias
from lockstep.strategy.zero1.spread_state import Entry
from lockstep.strategy.zero1.state_assembly import PLAIN
from lockstep.transport.channel import is_dense

UNIT = 64
"""Every tensor begins at a multiple of this many bytes."""
HEAD = UNIT
"""Bytes before the description."""

DTYPES = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16}
    | {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
)
"""Of tensors that can be in a region."""

Numbered = Sequence[tuple[int, Entry]]
"""Parameters' numbers in the sharing, and their states."""


_entry = itemgetter(1)


def rounded(num_bytes: int) -> int:
    """The next multiple of `UNIT`."""
    return -(-num_bytes // UNIT) * UNIT


def values_of(entries: Numbered) -> list[Any]:
    """All values, in order."""
    return [*chain.from_iterable(map(dict.values, map(_entry, entries)))]


@dataclass(frozen=True)
class Plan:
    """What goes where in a region."""

    entries: Numbered
    tensors: list[Tensor]
    offsets: list[int]
    """Of the tensors, in bytes from where they begin; one more: where they end."""

    @classmethod
    def of(cls, entries: Numbered, laid: set[int]) -> Plan | None:
        """Plan a region; None where a value cannot be in one, or something else looks at a tensor's memory.

        Args:
            entries: this rank's share.
            laid: addresses of tensors that are in a region already.
        """
        if not all(isinstance(entry, dict) for _, entry in entries):
            return None
        values = values_of(entries)
        tensors = [value for value in values if isinstance(value, Tensor)]
        if not all(_fits(value) for value in values) or any(used_elsewhere(tensors, laid)):
            return None
        return cls(entries, tensors, [0, *accumulate(rounded(tensor.nbytes) for tensor in tensors)])

    @property
    def description(self) -> bytes:
        """Everything but the tensors' values."""
        offsets = iter(self.offsets)

        def word(value: Any) -> list[Any]:
            if not isinstance(value, Tensor):
                return ["plain", value]
            name = str(value.dtype).removeprefix("torch.")
            return ["tensor", name, list(value.shape), list(value.stride()), next(offsets)]

        told = [[number, {key: word(value) for key, value in entry.items()}] for number, entry in self.entries]
        return json.dumps(told).encode()

    @property
    def num_bytes(self) -> int:
        """How large the region must be; numbers in the description may become longer."""
        return HEAD + self._room + self.offsets[-1]

    @property
    def _room(self) -> int:
        return rounded(2 * len(self.description) + 1024)

    @property
    def begin(self) -> int:
        """Where the tensors begin."""
        return HEAD + self._room


def _fits(value: Any) -> bool:
    if not isinstance(value, Tensor):
        return isinstance(value, PLAIN)
    is_plain = type(value) is Tensor and value.layout is torch.strided and value.device.type == "cpu"
    return (
        is_plain and value.dtype in DTYPES and not value.requires_grad and not value.is_inference() and is_dense(value)
    )


class Region:
    """The memory, on the rank that writes it and on those that read it.

    Args:
        memory: 1-D bytes; as many as the plan asks for, all of them 0 at first.
    """

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory
        self._numbers = memory[: 3 * 8].view(torch.int64)
        self._updates = self._numbers[:1]

    @property
    def updates(self) -> int:
        """Twice the number of updates since the region was made, and one more in the middle of one; 0 without a share."""
        return int(self._updates)

    def mark(self, updates: int) -> None:
        """Set `updates`. About 1 µs."""
        self._updates.fill_(updates)

    def move_in(self, plan: Plan) -> None:
        """Move the tensors into the region; they stay the same objects. The region must be marked as odd."""
        self._numbers[2] = plan.begin
        with torch.no_grad():
            for tensor, offset in zip(plan.tensors, plan.offsets, strict=False):
                if tensor.numel():
                    part = self._part(offset, tensor.nbytes, tensor.dtype)
                    tensor.set_(alias(part, 0, tensor))  # type: ignore[call-overload]  # torch's stub lacks this form
        self.describe(plan)

    def describe(self, plan: Plan) -> bool:
        """Write the description anew; False where it has become too long. The region must be marked as odd."""
        text = plan.description
        if HEAD + len(text) > int(self._numbers[2]):
            return False
        self._memory[HEAD : HEAD + len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._numbers[1] = HEAD + len(text)
        return True

    def entries(self) -> dict[int, Entry]:
        """The share, by the parameters' numbers; the tensors are those in the region."""
        end = int(self._numbers[1])
        told = json.loads(self._memory[HEAD:end].numpy().tobytes())
        return {number: {key: self._value(*word) for key, word in words.items()} for number, words in told}

    def _value(self, kind: str, *word: Any) -> Any:
        if kind == "plain":
            return word[0]
        name, shape, stride, offset = word
        dtype = getattr(torch, name)
        size = int(torch.Size(shape).numel())
        return self._part(offset, size * dtype.itemsize, dtype).as_strided(shape, stride)

    def _part(self, offset: int, num_bytes: int, dtype: torch.dtype) -> Tensor:
        begin = int(self._numbers[2]) + offset
        return self._memory[begin : begin + num_bytes].view(dtype)
