"""What a transport does when it loses a rank: the first loss ends everything, and is what every later exchange raises."""

from __future__ import annotations

import functools
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from samebits.errors import PeerLost
from samebits.protocol.journal.torch_words import is_of_a_peer
from samebits.protocol.layout.placement import Placement
from samebits.rank.transport.contract import Pending, Transport


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
    """What one rank loses, all of them lose: a `PeerLost` gives the transport up; so does a dead connection.

    The object has its transport as `transport`.
    """

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


class GuardedTransport(Transport):
    """A transport that is given up as a whole. It needs `loss`, and `all_or_lost` at whatever exchanges."""

    loss: Loss

    @property
    def transport(self) -> Any:
        """This one, for `all_or_lost`."""
        return self

    def look(self) -> None:
        self.loss.check()

    def give_up(self, lost: PeerLost) -> PeerLost:
        return self.loss.give_up(lost)

    def lose(self, lost: PeerLost) -> PeerLost:
        """`give_up`, and end this rank's threads; a thread does not end itself."""
        lost = self.give_up(lost)
        self.end_threads()
        return lost

    @abstractmethod
    def end_threads(self) -> None:
        """End this rank's threads, and wait for them."""

    @abstractmethod
    def explain(self, error: RuntimeError) -> PeerLost:
        """The loss that an error of torch's means."""

    @abstractmethod
    def begin_guarded(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        """Begin a sum, or raise `PeerLost`."""

    def begin_all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        # A sum may begin inside the script's backward. A loss is raised where the sum is waited for, which is ours.
        try:
            return self.begin_guarded(partials, placement, out)
        except PeerLost as lost:
            return _LostSum(lost)


class _LostSum(Pending):
    """A sum that could not begin, because another rank was lost."""

    def __init__(self, lost: PeerLost) -> None:
        self._lost = lost

    def advance(self, scale: float = 1.0) -> None:  # noqa: ARG002 - nothing is multiplied
        raise PeerLost(str(self._lost), is_dead=self._lost.is_dead)

    def finish(self) -> None:
        self.advance()

    def give_up(self) -> None:
        self.advance()


class GuardedMessage:
    """A message on its way; see `Sent`.

    Args:
        transport: given up if the message is lost.
        data: must live until it is delivered.
        wait: waits for it.
    """

    def __init__(self, transport: GuardedTransport, data: Tensor, wait: Callable[[], object]) -> None:
        self.transport, self._data, self._wait = transport, data, wait

    @all_or_lost
    def wait(self) -> object:
        return self._wait()
