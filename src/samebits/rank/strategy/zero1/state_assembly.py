"""Put together the state of an optimizer whose parts are on several ranks.

Ranks report in one frame what they hold; then tensors travel one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.rank.strategy.zero1.spread_state import Division, Entry, SpreadState, in_memory_order
from samebits.rank.transport.contract import Transport

PLAIN = (bool, int, float, str, type(None))
"""Types of values that a frame carries exactly."""


def assemble(
    division: Division, state: SpreadState, transport: Transport, where: str, *, everyone: bool
) -> dict[Any, Entry]:
    """Return the states of whole parameters. Collective: call it on every rank.

    Args:
        division: how `state` is cut.
        state: this rank's part; not changed.
        everyone: whether every rank gets everything; otherwise a parameter's state is put together on the first rank
            that holds a part of it, and only what is cut travels.

    Returns:
        By parameter, in memory order. Unless `everyone`, the tensors of whole pieces are those of `state`.

    Raises:
        UsageError: for a value that is no tensor, number or text.
    """
    own = {piece.number: state[piece.tensor] for piece in division.pieces if piece.tensor in state.keys()}  # noqa: SIM118 - `in state` is something else
    mine = [[number, {key: _described(value) for key, value in entry.items()}] for number, entry in own.items()]
    reports = [dict(known) for known in transport.all_gather_object(mine, "optimizer state", where)]
    found: dict[Any, Entry] = {}
    for number, (parameter, parts) in enumerate(zip(division.parameters, division.owners, strict=True)):
        first = parts[0][0]
        words = reports[first].get(number)
        if words is None:
            continue
        # An uncut state that only the first holder needs is there already.
        if everyone or len(parts) > 1:
            _refuse(words)
            collected = _Collected(division.likes[number], parts, transport, everyone)
            entry = {key: collected.value(word, own.get(number, {}).get(key)) for key, word in words.items()}
        else:
            entry = own.get(number, {})
        if everyone or first == transport.rank:
            found[parameter] = entry
    return found


def ordered(found: Mapping[Any, Entry], state: SpreadState) -> dict[Any, Entry]:
    """By when the parameters got a state."""
    place = {one: number for number, one in enumerate(state.order)}
    return dict(sorted(found.items(), key=lambda item: place.get(id(item[0]), len(place))))


def _described(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), value.device.type == "cpu"]
    return ["plain", value] if isinstance(value, PLAIN) else ["other", type(value).__name__]


def _refuse(words: dict[str, list[Any]]) -> None:
    for key, word in words.items():
        if word[0] == "other":
            raise UsageError(
                f"The optimizer's state {key!r} is a {word[1]}, which zero1 cannot send between ranks.",
                "Keep tensors, numbers and strings in it, or use --strategy ddp.",
            )


@dataclass(frozen=True)
class _Collected:
    """The values of one parameter's state, as they are collected."""

    like: Tensor
    parts: Sequence[tuple[int, int, int]]
    transport: Transport
    everyone: bool

    def value(self, word: list[Any], own: Any) -> Any:
        """Return one value, from what the first owner reported of it and what this rank has."""
        if word[0] == "plain":
            return word[1]
        _, name, shape, on_cpu = word
        dtype, device = getattr(torch, name), torch.device("cpu") if on_cpu else self.like.device
        first, start, end = self.parts[0]
        if len(self.parts) > 1 and shape == [end - start]:
            whole = torch.empty_like(self.like, dtype=dtype, device=device)
            for owner, begin, stop in self.parts:
                self._broadcast(
                    in_memory_order(whole)[begin:stop], own if owner == self.transport.rank else None, owner
                )
            return whole
        if not self.everyone:
            return own
        same = shape == list(self.like.shape)
        made = (
            torch.empty_like(self.like, dtype=dtype, device=device)
            if same
            else torch.empty(shape, dtype=dtype, device=device)
        )
        if first == self.transport.rank:
            made.copy_(own)
        self._broadcast(in_memory_order(made), None, first)
        return made

    def _broadcast(self, row: Tensor, value: Tensor | None, owner: int) -> None:
        if value is not None:
            row.copy_(value)
        if row.numel():
            self.transport.broadcast(row, owner)
