"""How ranks go on after the death of others: they meet the replacements in a new generation.

survivor, in the exchange that lost a rank      Rejoining: wait for the launcher's order, leave what the
replacement needs, meet in the new generation
replacement, in lockstep.init                   take_place: meet in the generation that it was started for
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Protocol, cast

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from lockstep.caller import where
from lockstep.errors import PeerLost, WorldError
from lockstep.handover.environment import Position, RankEnvironment
from lockstep.handover.generation import Generation, read_generation
from lockstep.handover.run_folder import RunFolder
from lockstep.journal.waiting_note import waits
from lockstep.node.generation_store import GenerationStore
from lockstep.node.meeting import meet
from lockstep.node.native import compiled
from lockstep.node.shared_store import inherited_store
from lockstep.notices import say
from lockstep.process_group.joining import meet_through
from lockstep.process_group.membership import Membership
from lockstep.process_group.self_test import group_problem
from lockstep.process_group.watched import NAME
from lockstep.transport.shared_memory import SharedMemoryTransport

ORDER_S = 3.0
"""How long a rank that has lost another waits for the launcher to replace it. Usually that takes milliseconds."""
LEFT_S = 0.5
"""How long it waits where the other one has left by itself: perhaps because its loader worker was killed."""
LOOK_S = 0.005

DEFAULT_GROUP, TRANSPORT = "default group", "transport"


class Rescue(Protocol):
    """What a rank knows that a replacement needs."""

    def objection(self) -> str:
        """Why nobody could go on from here; empty when somebody can."""

    def objection_to(self, lost: Sequence[int]) -> str:
        """Why these dead ranks in particular cannot be replaced; empty when they can."""

    def leave(self, folder: Path) -> None:
        """Leave it in `folder`. Raises OSError, and WorldError when this rank cannot know it all."""


class Rejoining:
    """Meets the replacements. Collective: every rank that is left calls it in the exchange that lost one.

    Args:
        environment: this rank's.
        rescue: what it knows.
    """

    def __init__(self, environment: RankEnvironment, rescue: Rescue) -> None:
        assert environment.settings is not None
        self._position, self._rescue = environment.position, rescue
        self._orders = RunFolder(environment.settings.run_folder).generation
        began = environment.settings.generation
        self._number = began.number if began is not None else 0

    def __call__(self, lost: PeerLost) -> SharedMemoryTransport:
        """Wait for the replacements, and return the transport of the new generation.

        Raises:
            PeerLost: when nobody can go on from here, or nobody will.
        """
        objection = self._rescue.objection()
        while True:
            order = self._next_order(lost)
            try:
                if objection:
                    self._refuse(objection, lost, speaks=order.writer == self._position.rank)
                if order.writer == self._position.rank:
                    self._leave(order, lost)
                self._number = order.number
                with waits(f"the replacement of {_named(order.lost)}", order.lost):
                    return meet_again(self._position, order, self._orders)
            except PeerLost as again:
                if not again.is_dead:
                    raise

    @staticmethod
    def _refuse(objection: str, lost: PeerLost, *, speaks: bool) -> NoReturn:
        if speaks:
            say(f"no rank is replaced here: {objection}.")
        raise PeerLost(f"{lost} It cannot be replaced here: {objection}.") from lost

    def _leave(self, order: Generation, lost: PeerLost) -> None:
        if objection := self._rescue.objection_to(order.lost):
            self._refuse(objection, lost, speaks=True)
        try:
            self._rescue.leave(Path(order.folder))
        except WorldError as error:
            self._refuse(str(error), lost, speaks=True)
        except OSError as error:
            raise PeerLost(f"{lost} Memory for a replacement is missing ({error.strerror}).") from lost

    def _next_order(self, lost: PeerLost) -> Generation:
        deadline = time.monotonic() + (ORDER_S if lost.is_dead else LEFT_S)
        with waits("the launcher's order to replace a rank that was lost"):
            while (order := read_generation(self._orders)) is None or order.number <= self._number:
                if time.monotonic() > deadline:
                    raise lost
                time.sleep(LOOK_S)
            return order


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def meet_again(position: Position, order: Generation, orders: Path) -> SharedMemoryTransport:
    """Meet in a new generation: renew the default group, and make a transport. Raises PeerLost."""
    default = dist.group.WORLD
    if isinstance(default, Membership):
        patience = default.exchange.patience or dt.timedelta(minutes=30)
        store = _store(order, orders, DEFAULT_GROUP)
        try:
            native = meet(store, position.rank, position.world_size, where, patience, is_watched=True)
        except compiled.GroupError as error:
            raise PeerLost(str(error.args[1]), is_dead=True) from None
        default.exchange.renew(native)
    return _transport(position, order, orders)


def take_place(environment: RankEnvironment, order: Generation) -> SharedMemoryTransport:
    """Meet the ranks that are left, in the place of a dead one. Raises PeerLost."""
    position, settings = environment.position, environment.settings
    shared = inherited_store()
    assert settings is not None
    assert shared is not None
    orders = RunFolder(settings.run_folder).generation
    if problem := group_problem():
        raise PeerLost(problem)
    meet_through(_store(order, orders, DEFAULT_GROUP))
    store = PrefixStore(f"generation {order.number}", shared)
    dist.init_process_group(NAME, store=store, rank=position.rank, world_size=position.world_size)
    return _transport(position, order, orders)


def _transport(position: Position, order: Generation, orders: Path) -> SharedMemoryTransport:
    store = cast("Store", _store(order, orders, TRANSPORT))  # it is not split
    return SharedMemoryTransport(store, position.rank, position.world_size)


def _store(order: Generation, orders: Path, purpose: str) -> GenerationStore:
    shared = inherited_store()
    assert shared is not None

    def is_over() -> bool:
        newest = read_generation(orders)
        return newest is not None and newest.number > order.number

    return GenerationStore(shared, f"generation {order.number} {purpose}", is_over)
