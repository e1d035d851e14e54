"""What torch.distributed calls a work: an exchange that may still be under way.

There is no progress thread. An exchange moves on whenever its rank is inside the library, and `wait` finishes it. So a
future cannot be completed by itself, and `Promise` says who completes it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from lockstep.torch_private import autograd_node, graph_task_id, queue_callback
from lockstep.transport.buffers import Buffers
from lockstep.transport.native import compiled


class Mover(Protocol):
    """What a work needs of its group; errors come as those of `collective_errors`."""

    def wait(self, pending: compiled.Pending, patience: dt.timedelta) -> None:
        """Until it is finished."""

    def test(self, pending: compiled.Pending) -> bool:
        """Move everything on; whether this one is finished."""


_NO_TIME = dt.timedelta(0)


class Finished(dist.Work):
    """Of a call that has waited already: nothing is left to do. One object serves all calls."""

    def wait(self, timeout: dt.timedelta = _NO_TIME) -> bool:  # noqa: ARG002 - torch's signature
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> Any:
        return None

    def result(self) -> list[Tensor]:
        return []

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result([])
        return future


class Transfer(dist.Work):
    """Operations or messages under way, and the tensors that they read and write."""

    def __init__(
        self, mover: Mover, pendings: Sequence[compiled.Pending], buffers: Buffers, results: list[Tensor]
    ) -> None:
        super().__init__()
        self.pendings = pendings
        self._mover, self._buffers, self._results = mover, buffers, results
        self._error: Exception | None = None
        self._is_done = False
        self._future: Promise | None = None

    def wait(self, timeout: dt.timedelta = _NO_TIME) -> bool:
        """Finish it.

        Raises:
            CollectiveMisused, CollectivePeerLost, CollectiveFailed: the group is broken; every later call raises too.
        """
        if self._is_done:
            return True
        try:
            for pending in self.pendings:
                self._mover.wait(pending, timeout)
        except Exception as error:
            self._error = error
            raise
        self._finish()
        return True

    def _finish(self) -> None:
        self._buffers.copy_back()
        self._is_done = True

    def synchronize(self) -> None:
        """As wait; there are no streams."""
        self.wait()

    def block_current_stream(self) -> None:
        """As wait; there are no streams."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is finished, after having moved on what can be moved."""
        if not self._is_done and all(map(self._mover.test, self.pendings)):
            self._finish()
        return self._is_done

    def is_over(self) -> bool:
        """Whether its exchange is finished, whoever has finished it; moves nothing on."""
        return all(pending.finished for pending in self.pendings)

    def is_success(self) -> bool:
        return self._is_done and self._error is None

    def exception(self) -> Any:
        return self._error

    def result(self) -> list[Tensor]:
        return self._results

    def source_rank(self) -> int:
        """The rank in the group that a message came from."""
        message = self.pendings[0]
        return message.peer if isinstance(message, compiled.Message) else -1

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        """A future of the tensors.

        During a backward pass (DDP and its hooks) it is completed at the end of the pass, in the order of the calls, so
        that buckets travel while gradients are computed; or before, when Python waits for it. At any other time this
        call waits.
        """
        if self._future is None:
            self._future = Promise(self)
            if self._is_done or not complete_after_backward(self):
                self.wait()
                self.keep_promise()
        return self._future

    def keep_promise(self) -> None:
        """Complete the future; the work must be finished."""
        if self._future is not None and not self._future.is_kept:
            self._future.is_kept = True
            self._future.set_result(self._results)


class Promise(Future[Any]):
    """A future that is completed by whoever waits for it first: the end of the backward pass, or Python."""

    def __init__(self, work: Transfer) -> None:
        super().__init__()
        self.work = work
        self.is_kept = False

    def wait(self) -> Any:
        self._keep()
        return super().wait()

    def value(self) -> Any:
        self._keep()
        return super().value()

    def done(self) -> bool:
        if self.work.is_completed():
            self.work.keep_promise()
        return super().done()

    def then(self, callback: Callable[[Future[Any]], Any]) -> Future[Any]:
        following = Promise(self.work)
        following.is_kept = True  # by this promise's callback

        def follow(_: Future[Any]) -> None:
            try:
                following.set_result(callback(self))
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                following.set_exception(error)

        self.add_done_callback(follow)
        return following

    def _keep(self) -> None:
        if not super().done():
            self.work.wait()
            self.work.keep_promise()


class Promised(list[Transfer]):
    """The works of one backward pass whose futures somebody has. The pass holds it; when the pass fails, both are gone."""


_promised: WeakValueDictionary[int, Promised] = WeakValueDictionary()
"""By the number of the backward pass."""


def complete_after_backward(work: Transfer) -> bool:
    """Have the work's future completed at the end of the backward pass of this thread; False when there is none."""
    number = graph_task_id()  # -1 outside of a backward pass
    # Outside of a node, at the end of the pass, DDP with a static graph waits at once in C++: nobody would come any more.
    if number == -1 or autograd_node() is None:
        return False
    promised = _promised.get(number)
    if promised is None:
        promised = _promised[number] = Promised()
        # Before the callback of DDP, which waits in C++ for futures that it got before.
        queue_callback(partial(_keep_promises, promised))
    promised.append(work)
    return True


def _keep_promises(promised: Promised) -> None:
    while promised:
        work = promised.pop(0)
        work.wait()
        work.keep_promise()
