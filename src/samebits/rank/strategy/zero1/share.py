"""One optimizer under zero1: this rank's share of its parameters, gradients and state.

The optimizer stays the user's. Inside its step its groups' lists hold this rank's pieces; outside, the parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from samebits.errors import UsageError
from samebits.rank.caller import where
from samebits.rank.strategy.optimizer_kinds import UpdatesBy
from samebits.rank.strategy.replica.arena import ParameterArena
from samebits.rank.strategy.zero1.spread_state import (
    Division,
    Entry,
    ParameterViews,
    ShardViews,
    SpreadState,
    WholeParameters,
    listed_in,
    share_out,
)
from samebits.rank.strategy.zero1.state_assembly import assemble, ordered
from samebits.rank.transport.contract import Transport


class Share:
    """One rank's share of one optimizer.

    Args:
        kind: how fine it may be shared out.
        arena: where its parameters are.
        require_same: raises if ranks do not pass equally often; takes what was called.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        kind: UpdatesBy,
        arena: ParameterArena,
        transport: Transport,
        require_same: Callable[[str], None],
    ) -> None:
        if isinstance(optimizer.state, SpreadState) and optimizer.state.is_spread:
            raise UsageError(
                f"The state of {type(optimizer).__name__} is spread over the ranks of a run that has ended.",
                "Make a new optimizer, and carry the state over with run.save_state and run.load_state.",
            )
        self.optimizer = optimizer
        self.num_updates = 0
        self.updated: list[nn.Parameter] = []
        """The parameters that have a gradient in the current update, the same on every rank."""
        self._depth = 0
        """The running steps of the optimizer: one that calls its base class's step begins two."""
        self._kind, self._transport, self._require_same = kind, transport, require_same
        self.division = share_out(optimizer, kind, arena, transport.rank, transport.world_size)
        self._state = SpreadState(self.division)
        self._take_state()
        self._views: ParameterViews = ShardViews(optimizer) if kind is not UpdatesBy.ITSELF else WholeParameters()
        self._views.link(self.division)
        self._found_of: tuple[Division | None, set[int], bool] = (None, set(), False)
        """The sharing and the `updated` for which `_somebody_has_none` was computed, and the answer."""
        self._shown: Any = None
        """The whole state, while `optimizer.state_dict()` reads it."""
        self._is_closed = False
        self._handles = [
            optimizer.register_state_dict_pre_hook(lambda _: self._show_whole_state()),
            optimizer.register_state_dict_post_hook(lambda *_: self._hide_whole_state()),
        ]

    @property
    def is_in_step(self) -> bool:
        return self._depth > 0

    def begins(self) -> bool:
        """Begin a step; return whether it is the outermost one."""
        self._depth += 1
        return self._depth == 1

    def ends(self) -> bool:
        """End the engine's step; return whether it was the outermost one, after which every rank has made its part."""
        self._depth -= 1
        if self._depth:
            return False
        # [Note: why gradients are dropped on every rank]
        # A step that ends with `zero_grad()` reaches only this rank's pieces. On one rank it would have reached all, so the
        # parameters of other ranks lose their gradients here too.
        dropped = self._has_dropped_gradients()
        self.leave()
        if dropped:
            for parameter in self.updated:
                parameter.grad = None
        self.num_updates += 1
        order = self._state.order
        if not order.keys() >= {*map(id, self.updated)}:
            updated = {*map(id, self.updated)}
            order.update({one: None for group in self.division.listed for one in group if one in updated})
        return True

    def _has_dropped_gradients(self) -> bool:
        """Whether the step ended with `zero_grad()`, which reached only this rank's part."""
        # A rank that updates nothing cannot see it, so the others report it; the same on every rank.
        dropped = bool(self._views.has_dropped())
        if self._somebody_has_none():
            dropped = not self._transport.all(not dropped, "optimizer.step()")
        return dropped

    def _somebody_has_none(self) -> bool:
        """Whether some rank updates nothing of `updated`; the same on every rank."""
        updated = {*map(id, self.updated)}
        division, before, lacks = self._found_of
        if division is not self.division or before != updated:
            pairs = zip(self.division.parameters, self.division.owners, strict=True)
            owners = {owner for parameter, parts in pairs if id(parameter) in updated for owner, *_ in parts}
            lacks = 0 < len(owners) < self._transport.world_size
            self._found_of = self.division, updated, lacks
        return lacks

    def has_strayed(self, present: Container[int]) -> bool:
        """Whether, since the last pass, a parameter was moved, or one joined the optimizer that is not in `present`."""
        if self.division.has_moved():
            return True
        listed = listed_in(self.optimizer)
        return listed != self.division.listed and any(one not in present for group in listed for one in group)

    def settle(self, arena: ParameterArena) -> None:
        """Follow what the script did to the optimizer since the last update."""
        if self._has_changed(arena):
            self._share_anew(arena)
            self._views.link(self.division)
        if self.optimizer.state is not self._state or self._state.has_whole:
            self._take_state()

    def _has_changed(self, arena: ParameterArena) -> bool:
        return self.division.arena is not arena or self.division.listed != listed_in(self.optimizer)

    def _share_anew(self, arena: ParameterArena) -> None:
        """Share anew after parameters moved, came or went."""
        # This is rare, so the state passes through its whole form, on every rank.
        old, state = self.division, self._state
        new = share_out(self.optimizer, self._kind, arena, self._transport.rank, self._transport.world_size)
        # The script has loaded a state in the meantime, which is whole.
        if self.optimizer.state is not state:
            self.division = new
        elif old.layout == new.layout:
            self.division, self._state = new, state.moved(old, new)
            self.optimizer.state = self._state
        else:
            self.optimizer.state = defaultdict(dict, self._whole(everyone=True))
            self.division = new

    def _take_state(self) -> None:
        """Keep this rank's part of a state that the script loaded, made or reset."""
        if self.optimizer.state is self._state:
            whole = self._state.take_whole()
        else:
            whole, self._state = dict(self.optimizer.state), SpreadState(self.division)
            self.optimizer.state = self._state
        self._state.cut_in(whole, self.division)

    def enter(self) -> None:
        """Give the engine this rank's part; see `ParameterViews.enter`."""
        self._views.enter(self._state)

    def leave(self) -> None:
        """Give everything back to the script, even after a step that raised; see `ParameterViews.leave`."""
        self._depth = 0
        self._views.leave(self._state)

    def whole_state(self, *, everyone: bool) -> Mapping[Any, Entry]:
        """Return the state by parameter; see `Strategy.whole_state`."""
        if self.optimizer.state is not self._state:
            return self.optimizer.state
        if self._state.has_whole:
            self._take_state()
        return self._whole(everyone=everyone)

    def _whole(self, *, everyone: bool) -> dict[Any, Entry]:
        state = self._state
        if not state.is_spread:
            return dict(state.items())
        found = assemble(self.division, state, self._transport, where(), everyone=everyone)
        return ordered(found, state) | state.others()

    def _show_whole_state(self) -> None:
        if self.optimizer.state is not self._state:
            return
        if self._is_closed and self._state.is_spread:
            raise UsageError(
                f"The run has ended, and the state of {type(self.optimizer).__name__} is spread over its ranks.",
                "Call optimizer.state_dict() on every rank, or run.save_state(path), before the run ends.",
            )
        self._require_same("optimizer.state_dict()")
        self._shown = self.optimizer.state = defaultdict(dict, self.whole_state(everyone=True))

    def _hide_whole_state(self) -> None:
        if self.optimizer.state is self._shown:
            self.optimizer.state = self._state
        self._shown = None

    def close(self) -> None:
        """Let go of the optimizer; a spread state stays spread, and still raises for whole parameters."""
        self.leave()
        self._is_closed = True
        if not self._state.is_spread:
            for handle in self._handles:
                handle.remove()
