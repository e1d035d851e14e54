"""The shares of an optimizer's state in memory of the node, so that the death of a rank loses nothing.

    before the engine      begin      this rank's share is at work
    after it               asks       is every value still in the memory? otherwise all ranks make it anew, together
    somebody asked         make       tensors move there once; from then on the optimizer updates them there
    a rank has died        whole      the whole state, from all shares

The memory has no name and ends with its processes. See docs/design/0021.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import accumulate, pairwise
from operator import is_
from sys import intern
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import PeerLost, WorldError
from lockstep.strategy.zero1.division import Division, in_memory_order
from lockstep.strategy.zero1.spread_state import Entry, SpreadState
from lockstep.strategy.zero1.state_region import Numbered, Plan, Region, rounded, values_of
from lockstep.transport.contract import Transport

MOST_MOVES = 8
"""After so many updates in a row that made new tensors, the optimizer is taken to make them always."""

ENDS_WITHIN_S = 0.2
"""How long the others may take to end an update in the middle of which this rank was interrupted."""

NOWHERE = "the other ranks cannot read its share of the optimizer's state"
NOT_AGAIN = "a rank was replaced, and there was no update since then"
CHANGED = "the script has changed the optimizer's state since its last update"
TORN = "rank {} was in an update"
UNLIKE = "the ranks describe their shares of the optimizer's state in different ways"


class KeptState:
    """The shares of one optimizer's state.

    Args:
        transport: the ranks.
        always: otherwise nothing is kept unless the transport `outlives` the death of a rank.
    """

    def __init__(self, transport: Transport, *, always: bool = False) -> None:
        self._transport = transport
        self._is_off = not (transport.outlives or always)
        self._regions: list[Region] = []
        """Those of all ranks."""
        self._memory: Tensor | None = None
        self._generation = transport.generation
        self._entries: list[Any] = []
        """All of this rank's, those for other keys than pieces too, and the same for pieces only."""
        self._numbered: Numbered = []
        self._values: list[Any] = []
        """Those of the pieces, as they are in this rank's region."""
        self._tensors: list[Tensor] = []
        self._addresses: list[int] = []
        self._updates = self._moves = self._since = 0

    @property
    def _mine(self) -> Region:
        return self._regions[self._transport.rank]

    def trust(self, state: SpreadState, division: Division) -> None:
        """Take this rank's share, which was just loaded, for memory of ours. Saving it makes torch think otherwise."""
        values = values_of(_share(state, division))
        self._addresses = [value.data_ptr() for value in values if isinstance(value, Tensor)]

    @property
    def is_kept(self) -> bool:
        """Whether other ranks can read this one's share; the same on every rank after an update."""
        return bool(self._regions)

    def begin(self) -> None:
        """An update begins."""
        self._since += 1
        if self._regions:
            self._mine.mark(2 * self._updates + 1)

    def asks(self, state: SpreadState, division: Division) -> bool:
        """An update has ended; whether the memory must be made anew. About 50 ns for each value."""
        if self._is_off:
            return False
        if not self._regions or self._transport.generation != self._generation:
            return True
        if not self._holds_values_of(state):
            entries = _share(state, division)
            values = values_of(entries)
            if not self._only_numbers_changed(values) or not self._mine.describe(self._plan_of(entries)):
                return True
            self._know(state, entries)
        self._updates += 1
        self._mine.mark(2 * self._updates)
        return False

    def _know(self, state: SpreadState, entries: Numbered) -> None:
        self._entries, self._numbered, self._values = [*dict.values(state)], entries, values_of(entries)

    def _holds_values_of(self, state: SpreadState) -> bool:
        """Whether the state consists of the same objects as before."""
        if len(state) != len(self._entries) or not all(map(is_, dict.values(state), self._entries)):
            return False
        values = values_of(self._numbered)
        return len(values) == len(self._values) and all(map(is_, values, self._values))

    def _holds(self, state: SpreadState) -> bool:
        """Whether they are where they were, too."""
        return self._holds_values_of(state) and list(map(Tensor.data_ptr, self._tensors)) == self._addresses

    def _only_numbers_changed(self, values: list[Any]) -> bool:
        if len(values) != len(self._values) or list(map(Tensor.data_ptr, self._tensors)) != self._addresses:
            return False
        pairs = zip(values, self._values, strict=True)
        return all(
            value is known or (type(value) is type(known) and type(value) in (int, float, bool, str))
            for value, known in pairs
        )

    def _plan_of(self, entries: Numbered) -> Plan:
        """The plan by which the tensors came to where they are, with other numbers."""
        return Plan(entries, self._tensors, [0, *accumulate(rounded(tensor.nbytes) for tensor in self._tensors)])

    def make(self, state: SpreadState, division: Division) -> None:
        """Move every rank's share into memory that all see. Collective: call it on every rank.

        Where that is impossible on one rank, or there is too little memory, nobody asks again.
        """
        self._moves = self._moves + 1 if self._since <= 1 else 1
        self._since = 0
        plan = Plan.of(_share(state, division), {*self._addresses}) if self._moves <= MOST_MOVES else None
        told = self._transport.all_gather_object(rounded(plan.num_bytes) if plan else -1, "optimizer state")
        self.close()
        self._is_off = plan is None or min(told) < 0
        if plan is None or self._is_off:
            return
        bounds = [0, *accumulate(told)]
        try:
            memory = self._transport.allocate_once(bounds[-1], torch.uint8, torch.device("cpu")).master
        except PeerLost:
            raise
        except WorldError:  # on every rank
            self._is_off = True
            return
        self._memory, self._regions = memory, [Region(memory[begin:end]) for begin, end in pairwise(bounds)]
        self._generation, self._updates = self._transport.generation, 1
        self._mine.mark(1)
        self._mine.move_in(plan)
        self._know(state, plan.entries)
        self._tensors = plan.tensors
        self._addresses = list(map(Tensor.data_ptr, plan.tensors))
        self._mine.mark(2)

    def whole(self, state: SpreadState, division: Division, *, hidden: bool = False) -> dict[Any, Entry]:
        """The states of whole parameters, in memory order, from all shares. Not a collective.

        Args:
            state: this rank's share.
            division: how it is cut.
            hidden: whether no script can have changed any share since the last update. Then those of ranks that have
                been replaced since will do, too.

        Raises:
            WorldError: where a share cannot be trusted, with the reason.
        """
        if not self._regions:
            raise WorldError(NOWHERE)
        if self._transport.generation != self._generation and not hidden:
            raise WorldError(NOT_AGAIN)
        if not self._holds(state):
            raise WorldError(CHANGED)
        for rank, region in enumerate(self._regions):
            if region.updates != 2 * self._updates:
                raise WorldError(TORN.format(rank))
        shares = [region.entries() for region in self._regions]
        if not self._values and any(shares) and not hidden:  # whether the script changed something cannot be told
            raise WorldError(NOWHERE)
        return put_together(shares, state, division)

    def as_it_is(self, state: SpreadState, division: Division) -> dict[Any, Entry]:
        """The same in the middle of an update, or after one that raised. Not a collective.

        Each element has its old or its new state, as on one rank. A parameter of which some rank has none is missing.
        """
        until_s = time.monotonic() + ENDS_WITHIN_S
        while any(region.updates % 2 for region in self._others) and time.monotonic() < until_s:
            time.sleep(0.001)
        shares = [region.entries() for region in self._regions] or [{} for _ in range(self._transport.world_size)]
        shares[self._transport.rank] = dict(_share(state, division))
        return put_together(shares, state, division, is_torn=True)

    @property
    def _others(self) -> list[Region]:
        return [region for rank, region in enumerate(self._regions) if rank != self._transport.rank]

    def close(self) -> None:
        """Make the memory an ordinary one, which ends with the tensors. Collective: call it on every rank."""
        if self._memory is not None:
            self._transport.free(self._memory)
        self._memory, self._regions = None, []


def _share(state: SpreadState, division: Division) -> Numbered:
    found = ((piece.number, dict.get(state, piece.tensor)) for piece in division.pieces)
    return [(number, entry) for number, entry in found if entry is not None]


def put_together(
    shares: list[dict[int, Entry]], state: SpreadState, division: Division, *, is_torn: bool = False
) -> dict[Any, Entry]:
    """The states of whole parameters that have one.

    Args:
        shares: of all ranks.
        state: this rank's, which knows whose there are.
        division: how parameters are cut.
        is_torn: whether some ranks may have a state for a parameter of which others have none yet; then it has none.

    Raises:
        WorldError: when shares do not belong together.
    """
    found: dict[Any, Entry] = {}
    for number, (parameter, parts) in enumerate(zip(division.parameters, division.owners, strict=True)):
        if id(parameter) not in state.order and not is_torn:
            continue
        entries = [shares[owner].get(number) for owner, *_ in parts]
        first = entries[0]
        if len({None if entry is None else tuple(entry) for entry in entries}) > 1:
            if is_torn:
                continue
            raise WorldError(UNLIKE)
        if first is not None:
            spans = [(start, end) for _, start, end in parts]
            found[parameter] = {
                intern(key): _whole_value(
                    [entry[key] for entry in entries if entry is not None], spans, division.likes[number]
                )
                for key in first
            }
    return found


def _whole_value(values: list[Any], spans: list[tuple[int, int]], like: Tensor) -> Any:
    """One value of a parameter's state: put together where it is cut, otherwise the first rank's."""
    start, end = spans[0]
    first = values[0]
    if not isinstance(first, Tensor) or len(spans) == 1 or list(first.shape) != [end - start]:
        return first
    whole = torch.empty_like(like, dtype=first.dtype, device=first.device)
    for value, (begin, stop) in zip(values, spans, strict=True):
        if not isinstance(value, Tensor) or (value.dtype, list(value.shape)) != (first.dtype, [stop - begin]):
            raise WorldError(UNLIKE)
        in_memory_order(whole)[begin:stop] = value
    return whole


def ordered(found: Mapping[Any, Entry], state: SpreadState) -> dict[Any, Entry]:
    """By when the parameters got a state."""
    place = {one: number for number, one in enumerate(state.order)}
    return dict(sorted(found.items(), key=lambda item: place.get(id(item[0]), len(place))))
