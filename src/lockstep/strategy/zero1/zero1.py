"""`zero1`: ddp, but each rank updates a share of the parameters and keeps only that share's optimizer state.

Gradients are reduced as under `ddp`: after a pass `p.grad` is complete on every rank and its own. Then each rank runs
the user's optimizer over its pieces of the parameters, and all ranks get the new values. Bits are those of `single`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from lockstep.caller import where
from lockstep.errors import WorldError
from lockstep.layout.placement import Placement
from lockstep.notices import say
from lockstep.strategy.around import Around
from lockstep.strategy.optimizer_kinds import updates_by as kind_of
from lockstep.strategy.other_users import used_elsewhere
from lockstep.strategy.replica.replica import Replica
from lockstep.strategy.replica.slots import Span
from lockstep.strategy.replica.tables import refuse_sparse
from lockstep.strategy.step_watch import StepWatch
from lockstep.strategy.zero1.share import Share
from lockstep.strategy.zero1.update_agreement import Agreement, require_agreement
from lockstep.strategy.zero1.visibility import Visibility
from lockstep.transport.contract import Transport

CHECKED_UPDATES = 4
"""Before this many updates of each optimizer, the bits of gradients and parameters are compared over ranks."""


class Zero1(Around):
    """A strategy where every rank holds the model and updates a share of it.

    Args:
        transport: the ranks.
        placement: lanes on ranks.
        visibility: the parameters' memory, and how new values become visible to all ranks.
    """

    takes_closures = False
    refuses_as = "zero1"
    """What refusals of an optimizer call this; see `StepWatch`."""

    def __init__(self, transport: Transport, placement: Placement, visibility: Visibility) -> None:
        replica = Replica("zero1", transport, placement, memory=visibility)
        super().__init__(replica)
        self.laid, self._transport, self._visibility = replica.laid, transport, visibility
        self.laid.on_watch = self._follow_layout
        self._shares: list[Share] = []
        self._watches: list[StepWatch] = []
        self._said = False

    def take_optimizer(self, optimizer: Optimizer, updates_by: str | None, require_same: Callable[[str], None]) -> None:
        refuse_sparse(optimizer, self.laid.trainable, self.laid.tables)
        kind = kind_of(optimizer, updates_by)
        share = Share(optimizer, kind, self.laid.arena, self._transport, require_same)
        self._take_share(share)

    def _take_share(self, share: Share) -> None:
        self._shares.append(share)
        self._watches.append(
            StepWatch(
                share.optimizer,
                before=lambda: self._before_engine(share),
                after=lambda: self._after_engine(share),
                undo=share.leave,
                strategy=self.refuses_as,
            )
        )
        self._cut_gradients()

    def _follow_layout(self) -> None:
        self._cut_gradients()
        self._say_what_stays()

    def _say_what_stays(self) -> None:
        """Say once which parameters must stay where they are, so each rank has its own and they save no memory."""
        parameters = self.laid.arena.parameters
        stay = [parameter for parameter in parameters if id(parameter) in self.laid.stay]
        if stay and not self._said and self._transport.rank == 0 and self._visibility.is_shared:
            say(
                f"{len(stay)} of {len(parameters)} parameters are in memory that something else uses too (a view, "
                f"a mapped file, NumPy), so each rank keeps its own copy. To share them, run "
                f"`p.data = p.data.clone()` before run.prepare."
            )
        self._said = self._said or bool(stay)

    def _cut_gradients(self) -> None:
        spans: list[Span] = []
        for share in self._shares:
            share.link(self.laid.trainable, spans)
        self.laid.pool.cut(spans)

    def before_update(self, optimizer: Optimizer) -> None:
        if any(share.optimizer is optimizer and share.is_in_step for share in self._shares):
            return  # a step that calls the step of its base class
        self._inner.before_update(optimizer)

    def _before_engine(self, share: Share) -> None:
        if not share.begins():
            return
        self._transport.tear("in the middle of an update")
        if share.has_strayed(self.laid.here):
            self.laid.lay_out_changed()
        if self._visibility.has_lost_memory:
            self._share_memory_again()
        if share.settle(self.laid.arena):
            self._cut_gradients()
        if self._agree(share).any_wrote:
            self._visibility.take_over()
        self._enter(share)

    def _agree(self, share: Share, *, gives_way: bool | None = None) -> Agreement:
        sums = self.laid.arena.checksums() if share.num_updates < CHECKED_UPDATES else []
        found = require_agreement(
            share.optimizer,
            share.division.parameters,
            self._transport,
            where(),
            sums,
            wrote=self._visibility.was_written(),
            gives_way=gives_way,
        )
        share.updated = found.updated
        return found

    def _enter(self, share: Share) -> None:
        slot = self.laid.result
        share.enter(slot if slot is not None and slot.spans is self.laid.pool.spans else None)

    def _share_memory_again(self) -> None:
        """Put the parameters into memory that all ranks see, as those that were replaced do not see what was there.

        What the script looks at through views of its own stays; then each rank has all parameters to itself.
        """
        parameters = [one for one in self.laid.arena.parameters if id(one) not in self.laid.stay]
        ours = [one for share in self._shares for one in share.division.views]
        tensors = [*{id(one): one for one in (*parameters, *ours)}.values()]
        used = used_elsewhere(tensors, {tensor.data_ptr() for tensor in tensors})[: len(parameters)]
        free = not any(used)
        self.laid.renew_memory(moves=self._transport.all(free, "memory of the model"))

    def _after_engine(self, share: Share) -> None:
        if not share.ends():
            return
        asks = share.asks_for_memory()
        if updated := share.updated:
            anybody = self._visibility.after_update(share.division.stretches, asks=asks)
            # Other ranks' writes bypassed autograd, which must see them: an earlier graph must not be used any more.
            torch.autograd.graph.increment_version(updated)
            if anybody:
                share.make_memory()

    def whole_state(self, optimizer: Optimizer, *, everyone: bool) -> Mapping[Any, Any]:
        for share in self._shares:
            if share.optimizer is optimizer:
                return share.whole_state(everyone=everyone)
        return self._inner.whole_state(optimizer, everyone=everyone)

    @property
    def is_spread(self) -> bool:
        return any(share.is_spread for share in self._shares)

    def state_alone(self, optimizer: Optimizer) -> Mapping[Any, Any]:
        for share in self._shares:
            if share.optimizer is optimizer:
                return share.state_alone()
        return self._inner.state_alone(optimizer)

    def left(self) -> Any:
        return [self._inner.left(), self._sharing, [share.left() for share in self._shares]]

    def take_over(self, left: Any) -> None:
        inner, sharing, shares = left
        self._inner.take_over(inner)
        if sharing != self._sharing:
            raise WorldError("The other ranks share the parameters out in another way than this script at its start.")
        for share, words in zip(self._shares, shares, strict=True):
            share.take_over(words)

    @property
    def _sharing(self) -> str:
        """A digest of where parameters are, and who updates what."""
        owners = [share.division.owners for share in self._shares]
        return hashlib.blake2b(repr([self.laid.arena.segments, owners]).encode(), digest_size=16).hexdigest()

    def close(self) -> None:
        self._inner.close()
        for watch in self._watches:
            watch.remove()
        for share in self._shares:
            share.close()
