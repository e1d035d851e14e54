"""A share of an optimizer whose state a script may look at as it likes: then it is whole, and the rank's own, from there on.

The next update must be one of the whole, which ranks have to agree on: `unasked`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from threading import RLock, get_ident
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lockstep.caller import where
from lockstep.errors import WorldError
from lockstep.strategy.optimizer_kinds import UpdatesBy
from lockstep.strategy.replica.arena import ParameterArena
from lockstep.strategy.shown_state import ShownState, state_here
from lockstep.strategy.zero1.by_itself import is_held, lists_twice
from lockstep.strategy.zero1.division import share_out
from lockstep.strategy.zero1.kept_state import ordered
from lockstep.strategy.zero1.share import Share
from lockstep.strategy.zero1.spread_state import Entry
from lockstep.transport.contract import Transport

ENDS_WITHIN_S = 60
"""How long another thread waits for a step that waits for other ranks."""


class ShownShare(Share):
    """See the module. Outside of its steps, the optimizer has a `ShownState`.

    Args:
        optimizer: the user's, updated element by element.
        arena: where its parameters are.
        transport: the ranks.
        require_same: see `Share`.
    """

    keeps_always = True

    def __init__(
        self,
        optimizer: Optimizer,
        arena: ParameterArena,
        transport: Transport,
        require_same: Callable[[str], None],
    ) -> None:
        self._screen = ShownState(self._held, self._copied)
        self._given: Mapping[Any, Entry] | None = None
        """The whole state, which a rank that took a dead one's place has loaded."""
        self._uncut: Mapping[Any, Entry] | None = None
        """The whole state that the optimizer had, or was given, until the next update: the others' shares of it are nowhere yet."""
        self._is_torn = False
        """Whether the last step has begun and not ended: an interrupt or an error came in between."""
        self._turn = RLock()
        """Held where a step begins, and where another thread begins to look."""
        self._thread = get_ident()
        """The one that makes, or made last, a step."""
        self._lent: list[list[Tensor]] | None = None
        """The engine's lists, while `state_dict` is called in the middle of it."""
        super().__init__(optimizer, UpdatesBy.ELEMENT, arena, transport, require_same)
        self._show()

    def begins(self) -> bool:
        with self._turn:
            self._is_torn, self._thread = True, get_ident()
            return super().begins()

    def ends(self) -> bool:
        if not super().ends():
            return False
        self._is_torn, self._uncut = False, None
        return True

    def _show_whole_state(self) -> None:
        """Show no pieces to `state_dict` in the middle of a step: a signal's handler sees all as it is; a thread waits."""
        until_s = time.monotonic() + ENDS_WITHIN_S
        while not self._shows_between_steps():
            if self._thread == get_ident():
                self._show_in_step()
                return
            if time.monotonic() > until_s:
                raise WorldError(
                    f"optimizer.state_dict() waited {ENDS_WITHIN_S} s for the end of a step in another thread."
                )
            time.sleep(0.0005)

    def _shows_between_steps(self) -> bool:
        """Look, before the groups are looked at, so that no update is divided from here on; False in the middle of a step."""
        with self._turn:
            if self.is_in_step and (self._thread != get_ident() or self.optimizer.state is self._state):
                return False
            len(self.optimizer.state)
            return True

    def _show_in_step(self) -> None:
        """Put all of it in its place until `state_dict` has read it."""
        groups = self.optimizer.param_groups
        self._lent = [group["params"] for group in groups]
        for group, listed in zip(groups, self._lending.lists(groups), strict=True):
            group["params"] = listed
        self._shown = self.optimizer.state = defaultdict(dict, self._copied())

    def _hide_whole_state(self) -> None:
        lent, self._lent = self._lent, None
        for group, listed in zip(self.optimizer.param_groups, lent or (), strict=False):
            group["params"] = listed
        super()._hide_whole_state()

    def _take_state(self) -> None:
        is_other = self.optimizer.state is not self._state
        self._uncut = dict(self.optimizer.state) if is_other else None
        super()._take_state()
        if is_other:
            self._screen = ShownState(self._held, self._copied)

    def settle(self, arena: ParameterArena) -> bool:
        if self.optimizer.state is self._screen:
            self.optimizer.state = self._state
        return super().settle(arena)

    def leave(self) -> None:
        super().leave()
        self._show()

    def _show(self) -> None:
        """Let the script see a state that is there when it looks."""
        if self.optimizer.state is self._state:
            self.optimizer.state = self._screen

    def _held(self) -> Mapping[Any, Entry]:
        return self._state

    def _copied(self) -> Mapping[Any, Entry]:
        """The whole state, in memory of this rank's own. Not a collective: the others' shares are read where they are."""
        if self._given is not None:
            return self._given
        if self._uncut is not None:
            return self._uncut
        if self._is_torn:
            found = self._kept.as_it_is(self._state, self.division)
        elif not self._state.is_spread:
            return dict(self._state.items())
        else:
            found = self._kept.whole(self._state, self.division, hidden=True)
        found = ordered(found, self._state)
        copied = {
            parameter: {key: value.clone() if isinstance(value, Tensor) else value for key, value in entry.items()}
            for parameter, entry in found.items()
        }
        return copied | self._state.others()

    def is_whole(self) -> bool:
        """Whether the script has looked at the state, or has put another one there that it holds itself too."""
        if self.optimizer.state is self._screen:
            return type(self._screen) is not ShownState or self._given is not None
        if self.optimizer.state is self._state:
            return False
        return self._given is not None or is_held(self.optimizer)  # a variable here would hold it, too

    @property
    def is_hidden(self) -> bool:
        """Whether the script has neither looked at the state nor put another one there."""
        return self.optimizer.state is self._screen and not self.is_whole()

    def objection(self, arena: ParameterArena) -> str:
        """Why the update cannot be divided after what the script did to the optimizer; empty if it can."""
        if not self._has_changed(arena):
            return ""
        if lists_twice(self.optimizer):
            return "an optimizer lists a parameter twice"
        if not self._state.is_spread:
            return ""
        new = share_out(self.optimizer, UpdatesBy.ELEMENT, arena, self._transport.rank, self._transport.world_size)
        return "" if self.division.layout == new.layout else "an optimizer got other parameters"

    @property
    def is_kept(self) -> bool:
        """Whether the script could look at the state; the same on every rank after an update."""
        return self._kept.is_kept or not self._state.is_spread

    def be_whole(self, *, together: bool) -> None:
        """Divide nothing any more: give the optimizer the whole state, and let go of it.

        Args:
            together: whether every rank does so here; otherwise shares are read where they are.
        """
        self.leave()
        self._is_torn = False  # from here on ranks must have the same
        self._see_nothing()
        if self.optimizer.state is self._screen and type(self._screen) is ShownState:
            self._screen.fill(self._whole(everyone=True) if together else self._copied())
        self._kept.close()

    def make_memory(self) -> None:
        super().make_memory()
        self._transport.barrier("optimizer state")  # a script may look at once

    @property
    def is_spread(self) -> bool:
        shown: Any = self.optimizer.state
        is_ours = shown is self._state or (shown is self._screen and type(shown) is ShownState)
        return is_ours and self._state.is_spread

    def state_alone(self) -> Mapping[Any, Entry]:
        if not self.is_spread:
            return dict(state_here(self.optimizer).items())
        return super().state_alone()

    def take_over(self, left: list[int] | None) -> None:  # noqa: ARG002 - after this nothing is divided any more
        self._given = dict(state_here(self.optimizer).items())

    def whole_state(self, *, everyone: bool) -> Mapping[Any, Entry]:
        shown: Any = self.optimizer.state
        if self._transport.any(self.is_whole(), "optimizer state", where()) or shown is not self._screen:
            return shown  # type: ignore[no-any-return]
        return self._whole(everyone=everyone)

    def close(self) -> None:
        self.leave()  # the script may look at any time
        self._see_nothing()

    def _see_nothing(self) -> None:
        """Take back the hooks."""
        for handle in self._handles:
            handle.remove()
