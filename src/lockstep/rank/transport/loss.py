"""What a transport has lost: the first loss counts, ends everything, and is what every later exchange raises."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from lockstep.errors import PeerLost
from lockstep.protocol.journal.torch_words import is_of_a_peer


class Loss:
    """Nothing is lost yet.

    Args:
        end: lets all exchanges fail, here and on the other ranks; called once, by the thread that noticed.
    """

    def __init__(self, end: Callable[[PeerLost], object]) -> None:
        self._end = end
        self._first: PeerLost | None = None
        self._losing = threading.Lock()

    def check(self) -> None:
        """Raise `PeerLost` if something was lost."""
        if self._first is not None:
            raise self._first

    def give_up(self, lost: PeerLost) -> PeerLost:
        """Lose; return what to raise. Any thread may call it."""
        with self._losing:
            if self._first is None:
                self._first = lost
                self._end(lost)
            return PeerLost(str(self._first), is_dead=self._first.is_dead)

    def leave(self) -> bool:
        """End on purpose: later exchanges raise. Whether nothing was lost before."""
        with self._losing:
            if self._first is not None:
                return False
            self._first = PeerLost("This rank has left the others.")
            return True


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def all_or_lost(method: Callable[Concatenate[Any, Arguments], Result]) -> Callable[..., Result]:
    """What one rank loses, all of them lose: a `PeerLost` gives the transport up; so does a dead connection."""

    @functools.wraps(method)
    def guarded(self: Any, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        transport = self.transport
        try:
            transport.loss.check()
            return method(self, *args, **named)
        except PeerLost as lost:
            raise transport.lose(lost) from None
        except RuntimeError as error:
            if is_of_a_peer(error):
                raise transport.lose(transport.explain(error)) from None
            raise

    return guarded
