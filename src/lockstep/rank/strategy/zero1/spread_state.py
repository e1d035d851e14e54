"""An optimizer's state, spread over ranks. `state_assembly` puts it together again.

The engine sees an ordinary state, with the pieces as keys. Asking for whole parameters raises an error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self

import torch
from torch import Tensor

from lockstep.errors import UsageError
from lockstep.rank.strategy.zero1.division import Division, Piece, in_memory_order

Entry = dict[str, Any]
"""The state of one parameter."""


class SpreadState(defaultdict[Any, Entry]):
    """The `optimizer.state` under zero1: the states of this rank's pieces, by their tensors.

    Entries for whole parameters may be put in; the next update takes them apart.
    """

    def __init__(self, sharing: Division) -> None:
        super().__init__(dict)
        self.parameters = {id(parameter) for parameter in sharing.parameters}
        self._mine = {id(piece.parameter): piece.tensor for piece in sharing.pieces}
        self.order: dict[int, None] = {}
        """Parameters (by identity) with a state on some rank, in the order in which they got it; the same on all."""
        self.has_whole = False
        """Whether entries for whole parameters were put in."""
        self._is_lent = False
        """Whether the engine is running and finds its entries by the parameters themselves."""

    def lend(self, pieces: Sequence[Piece]) -> None:
        """Keep entries of whole pieces under the parameters until `take_back`, for an engine that knows these."""
        self._is_lent = True
        for piece in pieces:
            if dict.__contains__(self, piece.tensor):
                dict.__setitem__(self, piece.parameter, dict.pop(self, piece.tensor))

    def take_back(self, pieces: Sequence[Piece]) -> Tensor | None:
        """Keep entries under the pieces again; return a parameter outside `pieces` that got one, if any."""
        self._is_lent = False
        for piece in pieces:
            if dict.__contains__(self, piece.parameter):
                dict.__setitem__(self, piece.tensor, dict.pop(self, piece.parameter))
        return next((key for key in self.keys() if id(key) in self.parameters), None)

    @property
    def is_spread(self) -> bool:
        return bool(self.order)

    def __missing__(self, key: Any) -> Entry:
        self._refuse(key)
        entry: Entry = {}
        self[key] = entry
        return entry

    def __setitem__(self, key: Any, entry: Entry) -> None:
        self.has_whole = self.has_whole or (id(key) in self.parameters and not self._is_lent)
        super().__setitem__(key, entry)

    def __delitem__(self, key: Any) -> None:
        """Forget a state; for a whole parameter, every rank forgets its part."""
        is_known = id(key) in self.parameters and id(key) in self.order
        if is_known:
            del self.order[id(key)]
            super().pop(self._mine.get(id(key)), None)
        if not is_known or super().__contains__(key):
            super().__delitem__(key)

    def __ior__(self, entries: Any) -> Self:  # type: ignore[override,misc]
        self.update(entries)
        return self

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self._refuse(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key, default) if key in self else default

    def pop(self, key: Any, *default: Any) -> Any:
        self._refuse(key)
        return super().pop(key, *default)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *entries: Any, **more: Any) -> None:
        """Update as any dictionary does, but through `__setitem__`."""
        for key, entry in dict(*entries, **more).items():
            self[key] = entry

    def __deepcopy__(self, _memo: dict[int, Any]) -> NoReturn:
        raise UsageError(
            "An optimizer under zero1 cannot be copied or pickled, because each rank holds a part of its state.",
            "Call optimizer.state_dict() on every rank, or run.save_state(path).",
        )

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        self.__deepcopy__({})

    def _refuse(self, key: object) -> bool:
        """Raise if another rank may have what is asked for, else return False."""
        if self.is_spread and id(key) in self.parameters and not self._is_lent:
            raise UsageError(
                "Under zero1, optimizer.state[parameter] is on the rank that updates the parameter, and may be cut.",
                "Call optimizer.state_dict() on every rank, or use --strategy ddp. To reset it, use `del "
                "optimizer.state[parameter]`.",
            )
        return False

    def take_whole(self) -> dict[Any, Entry]:
        """Take out the entries for whole parameters."""
        keys = [key for key in self.keys() if id(key) in self.parameters]
        self.has_whole = False
        take = super().pop
        return {key: take(key) for key in keys}

    def others(self) -> dict[Any, Any]:
        """The entries under keys other than this rank's pieces: of parameters not in the optimizer, or of none."""
        mine = {*map(id, self._mine.values())}
        return {key: value for key, value in self.items() if id(key) not in mine}

    def cut_in(self, whole: Mapping[Any, Entry], sharing: Division) -> None:
        """Keep this rank's parts of the states of whole parameters; those not in the sharing stay as they are.

        An empty state counts as none.
        """
        self.order |= {id(key): None for key, entry in whole.items() if entry and id(key) in self.parameters}
        for piece in sharing.pieces:
            if entry := whole.get(piece.parameter):
                self[piece.tensor] = _cut(entry, piece)
            elif entry is not None:
                super().pop(piece.tensor, None)
        for key, value in whole.items():
            if id(key) not in self.parameters:
                self[key] = value

    def moved(self, old: Division, new: Division) -> SpreadState:
        """Return the same state after the same parts of the same parameters have moved elsewhere."""
        moved, left = SpreadState(new), dict(self.items())
        for before, after in zip(old.pieces, new.pieces, strict=True):
            if before.tensor in left:
                moved[after.tensor] = left.pop(before.tensor)
        for key, value in left.items():
            moved[key] = value
        moved.order = self.order
        return moved


def _cut(entry: Entry, piece: Piece) -> Entry:
    if piece.is_whole:
        return entry
    return {key: _part(value, piece) if isinstance(value, Tensor) else value for key, value in entry.items()}


def _part(value: Tensor, piece: Piece) -> Tensor:
    if value.shape != piece.parameter.shape:
        return value.clone()
    laid = torch.empty_like(piece.parameter, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)
    return in_memory_order(laid)[piece.start : piece.end].clone()
