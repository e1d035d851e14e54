"""What an optimizer's engine sees of its parameters while each rank updates a share of them.

torch's own engines are known: they look at values, gradients and state, so they get pieces, cut where that balances.
Any other optimizer may look at what a parameter is: its attributes, its identity (in a dictionary by `id(p)` made long
ago), its class, its position in the group. So it gets all its parameters themselves, in their places, but only this
rank's have a gradient: an optimizer leaves parameters without a gradient alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.errors import UsageError
from lockstep.rank.strategy.replica.gradient_buffers import Slot, Span
from lockstep.rank.strategy.replica.slot_lane import set_gradients
from lockstep.rank.strategy.zero1.division import Division, Piece
from lockstep.rank.strategy.zero1.spread_state import SpreadState
from lockstep.rank.transport.channel import is_dense

_grad = attrgetter("grad")


class Lending(ABC):
    """What the engine sees between `enter` and `leave`. Call `link` first, and again when the sharing has changed."""

    @abstractmethod
    def link(self, sharing: Division, trainable: Sequence[nn.Parameter], spans: list[Span]) -> None:
        """Use this sharing from now on. Add to `spans` the parts of gradients that slots need views of."""

    @abstractmethod
    def enter(self, state: SpreadState, slot: Slot | None) -> None:
        """Give the engine this rank's part.

        Args:
            state: the optimizer's.
            slot: holds the gradients that `p.grad` views, as far as it does; None: every view is made anew.
        """

    @abstractmethod
    def has_dropped(self) -> bool | None:
        """Whether the engine dropped its gradients (`zero_grad()` inside a step); None: it had none."""

    @abstractmethod
    def leave(self, state: SpreadState) -> None:
        """Restore what was before `enter`, even after a step that raised. A second call does nothing.

        Raises:
            UsageError: when the engine made a state for a parameter that this rank does not update.
        """


class Pieces(Lending):
    """Lending by which the groups' lists hold this rank's pieces."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._lists: list[list[Tensor]] | None = None
        """The groups' own lists, while they hold pieces."""
        self._rows: list[tuple[Piece, int, int]] = []
        """For each piece, the numbers of its parameter and span in the pool; -1 for one that is not trainable."""
        self._of: list[nn.Parameter] = []
        self._tensors: list[Tensor] = []
        """The pieces' parameters and tensors."""
        self._spans: slice | None = None
        """Their spans in the pool, where all are trainable."""

    def link(self, sharing: Division, trainable: Sequence[nn.Parameter], spans: list[Span]) -> None:
        numbers = {id(parameter): number for number, parameter in enumerate(trainable)}
        self._groups, self._rows, first = sharing.groups, [], len(spans)
        for piece in sharing.pieces:
            number = numbers.get(id(piece.parameter), -1)
            self._rows.append((piece, number, len(spans) if number >= 0 else -1))
            if number >= 0:
                spans.append(Span(number, piece.start, piece.end))
        self._of, self._tensors = [row[0].parameter for row in self._rows], [row[0].tensor for row in self._rows]
        self._spans = slice(first, len(spans)) if len(spans) - first == len(self._rows) else None

    def enter(self, state: SpreadState, slot: Slot | None) -> None:  # noqa: ARG002 - it is kept by pieces
        if slot is not None and self._spans is not None and slot.still_show(list(map(_grad, self._of)), self._spans):
            set_gradients(self._tensors, slot.parts[self._spans])
        else:
            self._take_each(slot)
        groups = self._optimizer.param_groups
        self._lists = [group["params"] for group in groups]
        for group, pieces in zip(groups, self._groups, strict=True):
            group["params"] = pieces

    def _take_each(self, slot: Slot | None) -> None:
        for piece, number, span in self._rows:
            gradient = piece.parameter.grad
            if gradient is None:
                piece.tensor.grad = None
            elif slot is not None and span >= 0 and slot.still_shows(gradient, number, span):
                piece.tensor.grad = slot.parts[span]
            else:
                piece.tensor.grad = _part_of(gradient, piece)

    def has_dropped(self) -> bool | None:
        gradients, left = list(map(_grad, self._of)), list(map(_grad, self._tensors))
        had = [now for gradient, now in zip(gradients, left, strict=True) if gradient is not None]
        return not any(now is not None for now in had) if had else None

    def leave(self, state: SpreadState) -> None:  # noqa: ARG002
        lists, self._lists = self._lists, None
        if lists is not None:
            set_gradients(self._tensors, [None] * len(self._tensors))  # so references to them are only the engine's
        for group, parameters in zip(self._optimizer.param_groups, lists or (), strict=False):
            group["params"] = parameters


class Themselves(Lending):
    """Lending by which the groups' lists stay; this rank's parameters are over the memory that all ranks get.

    The others have no gradient.
    """

    def __init__(self) -> None:
        self._division: Division | None = None
        self._hidden: list[tuple[nn.Parameter, Tensor]] | None = None
        """Gradients of parameters that other ranks update, while the engine may run."""
        self._had: list[nn.Parameter] = []
        self._homes: list[Tensor] = []

    def link(self, sharing: Division, trainable: Sequence[nn.Parameter], spans: list[Span]) -> None:  # noqa: ARG002 - whole
        self._division = sharing

    def enter(self, state: SpreadState, slot: Slot | None) -> None:  # noqa: ARG002 - gradients are the parameters' own
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
        state.lend(pieces)

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
        if (stranger := state.take_back(self._division.pieces)) is not None:
            raise UsageError(
                f"The optimizer made a state for a parameter of shape {tuple(stranger.shape)} that has no gradient on "
                "this rank, so under zero1 it would update what other ranks update.",
                "Use --strategy ddp.",
            )


def _part_of(gradient: Tensor, piece: Piece) -> Tensor:
    """This rank's part of a gradient that has its own layout."""
    dense = gradient.detach() if gradient.layout is torch.strided else gradient.detach().to_dense()
    if piece.is_whole:
        return dense
    if dense.stride() != piece.parameter.stride() or not is_dense(dense):
        dense = torch.empty_like(piece.parameter, dtype=dense.dtype, requires_grad=False).copy_(dense)
    return dense.as_strided((dense.numel(),), (1,), dense.storage_offset())[piece.start : piece.end]
