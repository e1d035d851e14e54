"""Which rank updates which part of an optimizer's parameters, and this rank's parts as tensors; made once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.errors import UsageError
from lockstep.protocol.layout.chunks import Chunk, shares
from lockstep.rank.strategy.optimizer_kinds import CUTTABLE, UpdatesBy
from lockstep.rank.strategy.replica.arena import ParameterArena
from lockstep.rank.strategy.replica.places import Places
from lockstep.rank.strategy.zero1.visibility import Stretch


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
    def views(self) -> list[Tensor]:
        """All tensors of this object that may be over parameters' memory."""
        found = [*self.likes, *(piece.tensor for piece in self.pieces)]
        return [*found, *(one._base for one in found if one._base is not None)]  # noqa: SLF001 - torch's own name

    @property
    def layout(self) -> list[object]:
        """A value that is equal for sharings that give every rank the same elements, in the same order."""
        _, strides = self.places
        return [[id(parameter) for parameter in self.parameters], strides, self.owners]


def listed_in(optimizer: Optimizer) -> list[list[int]]:
    """Identities of the parameters of each group: cheap to compare."""
    return [[*map(id, group["params"])] for group in optimizer.param_groups]


def places_of(parameters: Sequence[nn.Parameter]) -> tuple[list[int], list[tuple[int, ...]]]:
    """Address and strides of each parameter."""
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
