"""`zero1`: ddp, but each rank updates a share of the parameters and keeps only that share's optimizer state.

Gradients are reduced as under `ddp`: after a pass `p.grad` is complete on every rank and its own. Then each rank runs
the user's optimizer over its pieces of the parameters, and all ranks get the new values. Bits are those of `single`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from samebits.notices import say
from samebits.protocol.layout.placement import Placement
from samebits.rank.caller import where
from samebits.rank.strategy.delegating import DelegatingStrategy
from samebits.rank.strategy.optimizer_kinds import StepWatch
from samebits.rank.strategy.optimizer_kinds import updates_by as kind_of
from samebits.rank.strategy.precision import Precision
from samebits.rank.strategy.replica.replica import Replica
from samebits.rank.strategy.replica.sparse_embedding import refuse_sparse
from samebits.rank.strategy.zero1.share import Share
from samebits.rank.strategy.zero1.update_agreement import Visibility, require_agreement
from samebits.rank.transport.contract import Transport

CHECKED_UPDATES = 4
"""Before this many updates of each optimizer, the bits of gradients and parameters are compared over ranks."""


class Zero1(DelegatingStrategy):
    """A strategy where every rank holds the model and updates a share of it.

    Args:
        visibility: the parameters' memory, and how new values become visible to all ranks.
    """

    takes_closures = False

    def __init__(
        self, transport: Transport, placement: Placement, precision: Precision, visibility: Visibility
    ) -> None:
        replica = Replica("zero1", transport, placement, precision, memory=visibility)
        super().__init__(replica)
        self.layout, self._transport, self._visibility = replica.layout, transport, visibility
        self.layout.on_watch = self._say_what_stays
        self._shares: list[Share] = []
        self._watches: list[StepWatch] = []
        self._said = False

    def take_optimizer(self, optimizer: Optimizer, updates_by: str | None, require_same: Callable[[str], None]) -> None:
        refuse_sparse(optimizer, self.layout.trainable, self.layout.tables)
        kind = kind_of(optimizer, updates_by)
        share = Share(optimizer, kind, self.layout.arena, self._transport, require_same)
        self._shares.append(share)
        self._watches.append(
            StepWatch(
                share.optimizer,
                before=lambda: self._before_engine(share),
                after=lambda: self._after_engine(share),
                undo=share.leave,
                strategy="zero1",
            )
        )

    def _say_what_stays(self) -> None:
        """Say once which parameters must stay where they are, so each rank has its own and they save no memory."""
        parameters = self.layout.arena.parameters
        stay = [parameter for parameter in parameters if id(parameter) in self.layout.stay]
        if stay and not self._said and self._transport.rank == 0 and self._visibility.is_shared:
            say(
                f"{len(stay)} of {len(parameters)} parameters are in memory that something else uses too (a view, "
                f"a mapped file, NumPy), so each rank keeps its own copy. To share them, run "
                f"`p.data = p.data.clone()` before run.prepare."
            )
        self._said = self._said or bool(stay)

    def before_update(self, optimizer: Optimizer) -> None:
        if any(share.optimizer is optimizer and share.is_in_step for share in self._shares):
            # This step calls the step of its base class.
            return
        self._inner.before_update(optimizer)

    def _before_engine(self, share: Share) -> None:
        if not share.begins():
            return
        if share.has_strayed(self.layout.here):
            self.layout.lay_out_changed()
        # Sharing out reads the arena, so it comes after the arena has followed the script.
        share.settle(self.layout.arena)
        sums = self.layout.arena.checksums() if share.num_updates < CHECKED_UPDATES else []
        share.updated, any_wrote = require_agreement(
            share.optimizer,
            share.division.parameters,
            self._transport,
            where(),
            sums,
            wrote=self._visibility.was_written(),
        )
        if any_wrote:
            self._visibility.take_over()
        share.enter()

    def _after_engine(self, share: Share) -> None:
        if not share.ends():
            return
        if updated := share.updated:
            self._visibility.after_update(share.division.stretches)
            # [Note: why versions are raised after an update]
            # Other ranks wrote into this rank's parameters behind autograd's back. A graph from before the update must raise,
            # as it does on one rank.
            torch.autograd.graph.increment_version(updated)

    def whole_state(self, optimizer: Optimizer, *, everyone: bool) -> Mapping[Any, Any]:
        for share in self._shares:
            if share.optimizer is optimizer:
                return share.whole_state(everyone=everyone)
        return self._inner.whole_state(optimizer, everyone=everyone)

    def close(self) -> None:
        self._inner.close()
        for watch in self._watches:
            watch.remove()
        for share in self._shares:
            share.close()
