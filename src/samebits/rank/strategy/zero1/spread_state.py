"""An optimizer's state, spread over ranks: who has which part, and the views that its engine sees. `state_assembly` joins it.

The engine sees an ordinary state, with the pieces as keys. Asking for whole parameters raises an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.errors import UsageError
from samebits.protocol.layout.chunks import Chunk, shares
from samebits.rank.strategy.optimizer_kinds import CUTTABLE, UpdatesBy
from samebits.rank.strategy.replica.arena import ParameterArena, Places
from samebits.rank.strategy.replica.lanes import set_gradients
from samebits.rank.strategy.zero1.update_agreement import Stretch
from samebits.rank.transport.channel import is_dense


@dataclass(frozen=True)
class Piece:
    """A part of a parameter that one rank updates."""

    number: int
    """The parameter's number in the sharing."""
    start: int
    end: int
    parameter: nn.Parameter
    tensor: Tensor
    """What the optimizer updates in the parameter's place, over the same memory: all of it in its shape, or elements
    [start, end) in memory order."""
    is_whole: bool


@dataclass(frozen=True)
class Division:
    """An optimizer's parameters, divided among ranks."""

    arena: ParameterArena
    listed: list[list[int]]
    """Identities of the parameters of each group for which the sharing was made."""
    parameters: list[nn.Parameter]
    """The parameters in memory order."""
    places: tuple[list[int], list[tuple[int, ...]]]
    """The parameters' addresses and strides."""
    likes: list[Tensor]
    """The parameters as they were: states have their shapes, strides and dtypes."""
    owners: list[list[tuple[int, int, int]]]
    """For each parameter, the (rank, start, end) of its parts, in order."""
    pieces: list[Piece]
    """This rank's pieces, in memory order."""
    groups: list[list[Tensor]]
    """This rank's tensors for each group, in the group's order."""
    stretches: list[Stretch]
    """All ranks' parts, joined where they are side by side."""

    known: Places
    """The same, to be compared quickly."""

    def has_moved(self) -> bool:
        """Whether the script gave a parameter other memory."""
        return not self.known.surely_same(self.parameters) and places_of(self.parameters) != self.places

    @property
    def layout(self) -> list[object]:
        """A value that is equal for sharings that give every rank the same elements, in the same order."""
        _, strides = self.places
        return [[id(parameter) for parameter in self.parameters], strides, self.owners]


def listed_in(optimizer: Optimizer) -> list[list[int]]:
    """Identities of the parameters of each group: cheap to compare."""
    return [[*map(id, group["params"])] for group in optimizer.param_groups]


def places_of(parameters: Sequence[nn.Parameter]) -> tuple[list[int], list[tuple[int, ...]]]:
    return list(map(Tensor.data_ptr, parameters)), list(map(Tensor.stride, parameters))


def share_out(optimizer: Optimizer, kind: UpdatesBy, arena: ParameterArena, rank: int, world_size: int) -> Division:
    """Share out the optimizer's parameters, which must be in `arena`.

    Raises:
        UsageError: for a parameter that is listed twice.
    """
    place = {id(parameter): number for number, parameter in enumerate(arena.parameters)}
    listed = listed_in(optimizer)
    found = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if len({*map(id, found)}) < len(found):
        raise UsageError(
            f"{type(optimizer).__name__} lists a parameter twice.", "List each one once, or use --strategy ddp."
        )

    def position(parameter: nn.Parameter) -> tuple[int, int, int]:
        number = place[id(parameter)]
        return arena.segments[number].flat, arena.segments[number].offset, number

    # In memory order, so that a rank's share is few stretches.
    parameters = sorted(found, key=position)
    may_cut = [kind is UpdatesBy.ELEMENT and parameter.dtype in CUTTABLE for parameter in parameters]
    parts = shares([parameter.numel() for parameter in parameters], may_cut, world_size)
    owners: list[list[tuple[int, int, int]]] = [[] for _ in parameters]
    for owner, chunks in enumerate(parts):
        for chunk in chunks:
            owners[chunk.parameter].append((owner, chunk.start, chunk.end))
    pieces = [
        _piece(chunk, parameters[chunk.parameter], arena.master(place[id(parameters[chunk.parameter])]))
        for chunk in parts[rank]
    ]
    tensor_of = {id(piece.parameter): piece.tensor for piece in pieces}
    groups = [[tensor_of[one] for one in group if one in tensor_of] for group in listed]
    likes = [parameter.detach() for parameter in parameters]
    stretches = [
        stretch
        for owner, chunks in enumerate(parts)
        for stretch in _stretches(owner, chunks, [place[id(parameter)] for parameter in parameters], arena)
    ]
    return Division(
        arena, listed, parameters, places_of(parameters), likes, owners, pieces, groups, stretches, Places(parameters)
    )


def _piece(chunk: Chunk, parameter: nn.Parameter, tensor: Tensor) -> Piece:
    is_whole = chunk.end - chunk.start == parameter.numel()
    if not is_whole:
        tensor = in_memory_order(tensor)[chunk.start : chunk.end]
    return Piece(chunk.parameter, chunk.start, chunk.end, parameter, tensor, is_whole)


def in_memory_order(dense: Tensor) -> Tensor:
    """View the elements of a dense tensor as one row, in memory order."""
    return dense.as_strided((dense.numel(),), (1,))


def _stretches(owner: int, chunks: Sequence[Chunk], places: Sequence[int], arena: ParameterArena) -> list[Stretch]:
    """Join a rank's chunks over the gaps that belong to no rank."""
    runs: list[list[int]] = []
    """[flat, begin, end, number of the parameter that may come next]."""
    for chunk in chunks:
        segment = arena.segments[places[chunk.parameter]]
        begin, end = segment.offset + chunk.start, segment.offset + chunk.end
        if chunk.start == chunk.end:
            continue
        after = _next_in_flat(arena, places[chunk.parameter]) if chunk.end == segment.size else -1
        if runs and runs[-1][0] == segment.flat and runs[-1][3] == places[chunk.parameter] and not chunk.start:
            runs[-1][2:] = [end, after]
        else:
            runs.append([segment.flat, begin, end, after])
    return [Stretch(owner, arena.flats[flat][begin:end], arena.flats[flat]) for flat, begin, end, _ in runs]


def _next_in_flat(arena: ParameterArena, number: int) -> int:
    flat = arena.segments[number].flat
    later = range(number + 1, len(arena.segments))
    return next((other for other in later if arena.segments[other].flat == flat and arena.segments[other].size), -1)


Entry = dict[str, Any]
"""The state of one parameter."""


class SpreadState(defaultdict[Any, Entry]):
    """The `optimizer.state` under zero1: the states of this rank's pieces, by their tensors.

    Entries for whole parameters may be put in; the next update takes them apart.
    """

    def __init__(self, division: Division) -> None:
        super().__init__(dict)
        self.parameters = {id(parameter) for parameter in division.parameters}
        self._mine = {id(piece.parameter): piece.tensor for piece in division.pieces}
        self.order: dict[int, None] = {}
        """Parameters (by identity) with a state on some rank, in the order in which they got it; the same on all."""
        self.has_whole = False
        """Whether entries for whole parameters were put in."""
        self._is_keyed_by_parameters = False
        """Whether the engine is running and finds its entries by the parameters themselves."""

    def key_by_parameters(self, pieces: Sequence[Piece]) -> None:
        """Key entries of whole pieces by the parameters until `key_by_pieces`, for an engine that knows only these."""
        self._is_keyed_by_parameters = True
        for piece in pieces:
            if dict.__contains__(self, piece.tensor):
                dict.__setitem__(self, piece.parameter, dict.pop(self, piece.tensor))

    def key_by_pieces(self, pieces: Sequence[Piece]) -> Tensor | None:
        """Key entries by the pieces again; return a parameter outside `pieces` that got one, if any."""
        self._is_keyed_by_parameters = False
        for piece in pieces:
            if dict.__contains__(self, piece.parameter):
                dict.__setitem__(self, piece.tensor, dict.pop(self, piece.parameter))
        return next((key for key in self.keys() if id(key) in self.parameters), None)

    @property
    def is_spread(self) -> bool:
        return bool(self.order)

    def __missing__(self, key: Any) -> Entry:
        # The engine asks for the entry of a piece that it updates for the first time.
        self._refuse(key)
        entry: Entry = {}
        self[key] = entry
        return entry

    def __setitem__(self, key: Any, entry: Entry) -> None:
        self.has_whole = self.has_whole or (id(key) in self.parameters and not self._is_keyed_by_parameters)
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
        """Raise if another rank may have what is requested, else return False."""
        if self.is_spread and id(key) in self.parameters and not self._is_keyed_by_parameters:
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
        # Inside the comprehension `super()` would not find this object.
        take = super().pop
        return {key: take(key) for key in keys}

    def others(self) -> dict[Any, Any]:
        """The entries under keys other than this rank's pieces: of parameters not in the optimizer, or of none."""
        mine = {*map(id, self._mine.values())}
        return {key: value for key, value in self.items() if id(key) not in mine}

    def cut_in(self, whole: Mapping[Any, Entry], division: Division) -> None:
        """Keep this rank's parts of the states of whole parameters; those not in the sharing stay as they are.

        An empty state counts as none.
        """
        self.order |= {id(key): None for key, entry in whole.items() if entry and id(key) in self.parameters}
        for piece in division.pieces:
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
    layout = torch.empty_like(piece.parameter, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)
    return in_memory_order(layout)[piece.start : piece.end].clone()


_grad = attrgetter("grad")


class ParameterViews(ABC):
    """What the engine sees between `enter` and `leave`. Call `link` first, and again when the sharing has changed."""

    @abstractmethod
    def link(self, division: Division) -> None:
        """Use this sharing from now on."""

    @abstractmethod
    def enter(self, state: SpreadState) -> None:
        """Give the engine this rank's part; `state` is the optimizer's."""

    @abstractmethod
    def has_dropped(self) -> bool | None:
        """Whether the engine dropped its gradients (`zero_grad()` inside a step); None: it had none."""

    @abstractmethod
    def leave(self, state: SpreadState) -> None:
        """Restore what was before `enter`, even after a step that raised. A second call does nothing.

        Raises:
            UsageError: when the engine made a state for a parameter that this rank does not update.
        """


class ShardViews(ParameterViews):
    """The groups' lists hold this rank's pieces."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._lists: list[list[Tensor]] | None = None
        """The groups' own lists, while they hold pieces."""
        self._pieces: list[Piece] = []
        self._of: list[nn.Parameter] = []
        self._tensors: list[Tensor] = []
        """The pieces' parameters and tensors."""

    def link(self, division: Division) -> None:
        self._groups, self._pieces = division.groups, division.pieces
        self._of, self._tensors = [one.parameter for one in self._pieces], [one.tensor for one in self._pieces]

    def enter(self, state: SpreadState) -> None:  # noqa: ARG002 - entries are keyed by pieces
        parts = [
            None if gradient is None else _part_of(gradient, piece)
            for gradient, piece in zip(map(_grad, self._of), self._pieces, strict=True)
        ]
        set_gradients(self._tensors, parts)
        groups = self._optimizer.param_groups
        self._lists = [group["params"] for group in groups]
        for group, pieces in zip(groups, self._groups, strict=True):
            group["params"] = pieces

    def has_dropped(self) -> bool | None:
        gradients, left = list(map(_grad, self._of)), list(map(_grad, self._tensors))
        had = [now for gradient, now in zip(gradients, left, strict=True) if gradient is not None]
        return not any(now is not None for now in had) if had else None

    def leave(self, state: SpreadState) -> None:  # noqa: ARG002
        lists, self._lists = self._lists, None
        if lists is not None:
            # A piece that kept its gradient would hold the buffer, which then could not be used again.
            set_gradients(self._tensors, [None] * len(self._tensors))
        for group, parameters in zip(self._optimizer.param_groups, lists or (), strict=False):
            group["params"] = parameters


class WholeParameters(ParameterViews):
    """The groups' lists stay. This rank's parameters are over the memory that all ranks get; the others have no gradient."""

    def __init__(self) -> None:
        self._division: Division | None = None
        self._hidden: list[tuple[nn.Parameter, Tensor]] | None = None
        """Gradients of parameters that other ranks update, while the engine may run."""
        self._had: list[nn.Parameter] = []
        self._homes: list[Tensor] = []

    def link(self, division: Division) -> None:
        self._division = division

    def enter(self, state: SpreadState) -> None:
        assert self._division is not None
        pieces = self._division.pieces
        mine = {id(piece.parameter) for piece in pieces}
        self._had = [piece.parameter for piece in pieces if piece.parameter.grad is not None]
        self._homes = [piece.parameter.data for piece in pieces]
        self._hidden = []
        for parameter in self._division.parameters:
            if id(parameter) not in mine and parameter.grad is not None:
                self._hidden.append((parameter, parameter.grad))
                parameter.grad = None
        for piece in pieces:
            piece.parameter.data = piece.tensor
        state.key_by_parameters(pieces)

    def has_dropped(self) -> bool | None:
        return all(parameter.grad is None for parameter in self._had) if self._had else None

    def leave(self, state: SpreadState) -> None:
        hidden, self._hidden = self._hidden, None
        if hidden is None or self._division is None:
            return
        for piece, home in zip(self._division.pieces, self._homes, strict=True):
            piece.parameter.data = home
        for parameter, gradient in hidden:
            parameter.grad = gradient
        self._homes, self._had = [], []
        if (foreign := state.key_by_pieces(self._division.pieces)) is not None:
            raise UsageError(
                f"The optimizer made a state for a parameter of shape {tuple(foreign.shape)} that has no gradient on "
                "this rank, so under zero1 it would update what other ranks update.",
                "Use --strategy ddp.",
            )


def _part_of(gradient: Tensor, piece: Piece) -> Tensor:
    """This rank's part of a gradient, which may have another layout than the parameter."""
    dense = gradient.detach() if gradient.layout is torch.strided else gradient.detach().to_dense()
    if piece.is_whole:
        return dense
    if dense.stride() != piece.parameter.stride() or not is_dense(dense):
        dense = torch.empty_like(piece.parameter, dtype=dense.dtype, requires_grad=False).copy_(dense)
    return dense.as_strided((dense.numel(),), (1,), dense.storage_offset())[piece.start : piece.end]
