"""`zero1`: ddp, but each rank updates a share of the parameters and keeps only that share's optimizer state.

Gradients are reduced as under `ddp`: after a pass `p.grad` is complete on every rank and its own. Then each rank runs the
user's optimizer over its pieces of the parameters, and everybody gets the new values. Bits are those of `single`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from lockstep.caller import where
from lockstep.layout.placement import Placement
from lockstep.strategy.optimizer_kinds import updates_by
from lockstep.strategy.replica.arena import ParameterArena
from lockstep.strategy.replica.replica import Replica
from lockstep.strategy.replica.slots import Span
from lockstep.strategy.step_watch import StepWatch
from lockstep.strategy.zero1.share import Share
from lockstep.strategy.zero1.update_agreement import require_agreement
from lockstep.strategy.zero1.visibility import Visibility
from lockstep.transport.contract import Transport

CHECKED_UPDATES = 4
"""Before so many updates of each optimizer the bits of gradients and parameters are compared over ranks."""


class Zero1(Replica):
    """Every rank holds the model and updates a share of it.

    Args:
        transport: the ranks.
        placement: lanes on ranks.
        visibility: how new parameters become visible to everyone.
    """

    takes_closures = False

    def __init__(self, transport: Transport, placement: Placement, visibility: Visibility) -> None:
        super().__init__("zero1", transport, placement)
        self._visibility = visibility
        self._shares: list[Share] = []
        self._watches: list[StepWatch] = []
        self._said = False

    def take_optimizer(self, optimizer: Optimizer, said: str | None, require_same: Callable[[str], None]) -> None:
        kind = updates_by(optimizer, said)
        share = Share(optimizer, kind, self._arena, self._transport, require_same)
        self._shares.append(share)
        self._watches.append(
            StepWatch(
                optimizer,
                before=lambda: self._before_engine(share),
                after=lambda: self._after_engine(share),
                undo=share.leave,
            )
        )
        self._cut_gradients()

    def _lay_out(self, *, compact: bool = False) -> None:
        super()._lay_out(compact=compact)
        self._say_what_stays()
        self._visibility.keep(self._arena.flats)
        self._visibility.publish()

    def _say_what_stays(self) -> None:
        """Parameters that must stay where they are lie on each rank, so that they save no memory; said once."""
        stay = [parameter for parameter in self._arena.parameters if id(parameter) in self._stay]
        if stay and not self._said and self._transport.rank == 0 and self._visibility.is_shared:
            print(
                f"lockstep: {len(stay)} of {len(self._arena.parameters)} parameters lie in memory that something else uses too (a view, "
                f"a mapped file, NumPy), so each rank keeps its own. To share them, `p.data = p.data.clone()` before run.prepare.",
                file=sys.stderr,
            )
        self._said = self._said or bool(stay)

    def _make_arena(self, previous: ParameterArena | None) -> ParameterArena:
        allocate, master = self._visibility.allocate, self._visibility.master
        return ParameterArena(self._models, self._absent, allocate, master, self._stay, previous)

    def _watch_trainable(self) -> None:
        super()._watch_trainable()
        self._cut_gradients()

    def _cut_gradients(self) -> None:
        spans: list[Span] = []
        for share in self._shares:
            share.link(self.trainable, spans)
        self._pool.cut(spans)

    def before_update(self, optimizer: Optimizer) -> None:
        if any(share.optimizer is optimizer and share.is_in_step for share in self._shares):
            return  # a step that calls the step of its base class
        super().before_update(optimizer)

    def _before_engine(self, share: Share) -> None:
        if not share.begins():
            return
        if share.has_strayed(self._present):
            self._follow_changes()
        if share.settle(self._arena):
            self._cut_gradients()
        sums = self._arena.checksums() if share.num_updates < CHECKED_UPDATES else []
        share.updated, any_wrote = require_agreement(
            share.optimizer,
            share.sharing.parameters,
            self._transport,
            where(),
            sums,
            wrote=self._visibility.was_written(),
        )
        if any_wrote:
            self._visibility.take_over()
        slot = self._result
        share.enter(slot if slot is not None and slot.spans is self._pool.spans else None)

    def _after_engine(self, share: Share) -> None:
        if not share.ends():
            return
        if updated := share.updated:
            self._visibility.after_update(share.sharing.stretches)
            # Others' writes came past autograd, which must see them: a graph from before is of no use any more.
            torch.autograd.graph.increment_version(updated)

    def whole_state(self, optimizer: Optimizer, *, everyone: bool) -> Mapping[Any, Any]:
        for share in self._shares:
            if share.optimizer is optimizer:
                return share.whole_state(everyone=everyone)
        return super().whole_state(optimizer, everyone=everyone)

    def close(self) -> None:
        super().close()
        for watch in self._watches:
            watch.remove()
        for share in self._shares:
            share.close()
