"""`zero1` where nobody named a strategy: the quicker of two ways to the same bits, until a script does what only `ddp` can.

    prepare                 an optimizer that `suits`: its update is divided, and parameters move to memory of the node
    the script looks at the optimizer's state, on whatever rank       all of it is there, by `ShownState`
    the next update of any optimizer                                  ranks tell each other, and give way: every rank
                                                                      has a whole state and parameters of its own, as `ddp`

Nothing is refused here that `ddp` allows, and nothing is compared that it does not compare: where ranks are about to make
different updates, they give way too, and the checks of `ddp` find out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from lockstep.layout.placement import Placement
from lockstep.notices import say
from lockstep.strategy.other_users import used_elsewhere
from lockstep.strategy.zero1.by_itself import is_scaled, suits
from lockstep.strategy.zero1.once_per_node import OncePerNode
from lockstep.strategy.zero1.share import Share
from lockstep.strategy.zero1.shown_share import ShownShare
from lockstep.strategy.zero1.zero1 import Zero1
from lockstep.transport.contract import Transport

WRITTEN = 1.2
"""Above this, scripts write to parameters about every second update, which costs more than is won: each counts 1, and half
as much with every update that follows."""


class Unasked(Zero1):
    """`ddp`, which makes the updates of some optimizers as `zero1` does.

    Args:
        transport: ranks that share memory.
        placement: lanes on ranks.
    """

    takes_closures = True
    refuses_as = ""

    def __init__(self, transport: Transport, placement: Placement) -> None:
        self._memory = OncePerNode(transport, is_in_use=False)
        super().__init__(transport, placement, self._memory)
        self.name = "ddp"
        self._is_over = False
        """Whether this run divides no update any more."""
        self._written = 0.0
        self._divided: list[ShownShare] = []
        """All shares, again: here they are known as what they are."""

    def take_optimizer(self, optimizer: Optimizer, updates_by: str | None, require_same: Callable[[str], None]) -> None:
        self._inner.take_optimizer(optimizer, updates_by, require_same)
        if self._is_over:
            return
        fits = updates_by is None and suits(optimizer) and not self.laid.kept_sparse()
        if not fits or not (self._shares or self._moves_in()):
            self._give_way("")
            self._memory.give_up()
            return
        share = ShownShare(optimizer, self.laid.arena, self._transport, require_same)
        self._divided.append(share)
        self._take_share(share)
        self.name = "zero1"

    def _moves_in(self) -> bool:
        """Move the parameters into memory of the node; whether that worked. Collective: call it on every rank."""
        if any(flat.device.type != "cpu" for flat in self.laid.arena.flats) or not self._is_free():
            return False
        self._memory.is_in_use = True
        self.laid.renew_memory(moves=True)
        return self._memory.has_parts

    def _is_free(self) -> bool:
        """Whether all parameters can move, on every rank: nobody has views of them. Collective."""
        parameters = self.laid.arena.parameters
        ours = [one for share in self._shares for one in share.division.views]
        tensors = [*{id(one): one for one in (*parameters, *ours)}.values()]
        used = used_elsewhere(tensors, {tensor.data_ptr() for tensor in tensors})[: len(parameters)]
        stay = any(id(one) in self.laid.stay for one in parameters)
        return self._transport.all(not any(used) and not stay, "memory of the model")

    def _say_what_stays(self) -> None:
        """Say nothing: where parameters must stay, nothing is shared."""

    def _before_engine(self, share: Share) -> None:
        if share.begins():
            self._before_update(next(one for one in self._divided if one is share))

    def _before_update(self, share: ShownShare) -> None:
        self._transport.tear("in the middle of an update")
        if share.has_strayed(self.laid.here):
            self.laid.lay_out_changed()
        if why := self._objection(share):
            self._give_way(why)
            return
        is_whole = share.is_whole()
        if not is_whole and share.settle(self.laid.arena):
            self._cut_gradients()
        agreed = self._agree(share, gives_way=is_whole)
        self._written = self._written / 2 + agreed.any_wrote
        if agreed.gives_way:
            self._give_way("the script looked at an optimizer's state" if is_whole else "")
        elif self._written > WRITTEN or (agreed.any_wrote and not self._memory.takes_over()):
            self._give_way("the script itself writes to the parameters")
        else:
            self._enter(share)

    def _objection(self, share: ShownShare) -> str:
        """Why an update cannot be divided, as every rank knows by itself; empty if it can."""
        if self._memory.has_lost_memory:
            return "a rank was replaced"
        if is_scaled(share.optimizer):
            return "a GradScaler divides the gradients in the update"
        if self.laid.kept_sparse():
            return "an optimizer takes sparse gradients now, which cannot be divided"
        return share.objection(self.laid.arena)

    def _after_engine(self, share: Share) -> None:
        if all(share is not one for one in self._divided):
            return
        super()._after_engine(share)
        if not all(one.is_kept for one in self._divided):
            self._give_way("", together=True)

    @property
    def is_hidden(self) -> bool:
        return all(share.is_hidden for share in self._divided)

    def expect_closure(self) -> None:
        if self._shares:
            self._give_way("optimizer.step(closure) computes gradients in the update")

    def _give_way(self, why: str, *, together: bool = False) -> None:
        """Be `ddp` from here on. Collective: call it on every rank, at the same place."""
        was_divided = bool(self._shares)
        self._let_go(together=together)
        if not was_divided:
            return
        moves = self._is_free()
        self._memory.give_up()
        self.laid.renew_memory(moves=moves)
        if why and self._transport.rank == 0:
            say(f"From here on each rank updates all parameters, as under --strategy ddp, with the same bits: {why}.")

    def _let_go(self, *, together: bool) -> None:
        self._is_over, self.name = True, "ddp"
        for share in self._divided:
            share.be_whole(together=together)
        for watch in self._watches:
            watch.rest()
        self._divided.clear()
        self._shares.clear()
        self._watches.clear()
        if self.laid.models:
            self._cut_gradients()

    def left(self) -> Any:
        return [*super().left(), self._is_over]

    def take_over(self, left: Any) -> None:
        *shared, is_over = left
        if is_over and not self._is_over:
            self._let_go(together=False)
            self._memory.give_up()
            shared[1] = self._sharing
        super().take_over(shared)
