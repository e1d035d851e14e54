"""What torch.distributed calls a work: an exchange that may still be under way.

There is no progress thread. An exchange moves on whenever its rank is inside the library, and `wait` finishes it. So a
future cannot complete on its own: `Handle` and `Promise` say who completes it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary, ref

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from samebits.errors import EnvironmentFailure
from samebits.machine.torch_private import (
    FrameAction,
    FrameExecStrategy,
    PythonCallbackWork,
    autograd_node,
    graph_task_id,
    queue_callback,
    set_code_exec_strategy,
)
from samebits.rank.caller import TORCH, calling_file
from samebits.rank.process_group.operands import Buffers
from samebits.rank.transport.local.native import compiled


class Mover(Protocol):
    """What a work needs from its group; it raises the classes in `errors`."""

    def wait(self, pending: compiled.Pending, patience: dt.timedelta) -> None:
        """Wait until it is finished."""

    def test(self, pending: compiled.Pending) -> bool:
        """Move everything on; whether this one is finished."""


_NO_TIME = dt.timedelta(0)
_T = TypeVar("_T")
_DDP = f"{TORCH}nn/parallel/distributed.py"


def uncompiled(kind: type[_T]) -> type[_T]:
    """Keep torch.compile out of the methods of a class, and of all that they call.

    DDP calls its group from C++ while the compiler watches (buckets made anew, from `forward`). The compiler then takes
    the method for a piece of the model, and raises at the first attribute of a group that it doesn't know.
    """
    # A torch without these names has no compiler that would come here.
    with suppress(EnvironmentFailure):
        never = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
        for method in (method for each in kind.__mro__ for method in vars(each).values()):
            if isinstance(method, FunctionType):
                set_code_exec_strategy(method.__code__, never)
    return kind


@uncompiled
class Finished(dist.Work):
    """The work of a call that has waited already: nothing is left to do. One object, `DONE`, serves all calls."""

    def wait(self, timeout: dt.timedelta = _NO_TIME) -> bool:  # noqa: ARG002 - torch's signature
        return True

    def synchronize(self) -> None:
        """Do nothing: there is nothing to wait for."""

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


DONE = Finished()


class Transfer:
    """Operations or messages under way, and the tensors that they read and write."""

    def __init__(
        self, mover: Mover, pendings: Sequence[compiled.Pending], buffers: Buffers, results: list[Tensor]
    ) -> None:
        self.pendings, self.results = pendings, results
        self.error: Exception | None = None
        self.is_done = False
        self.is_receive = False
        """Whether it is one message to this rank, which may never come."""
        self.patience = _NO_TIME
        """How long to wait if a waiter does not say; without a time, as long as the group."""
        self.then: list[Callable[[], None]] = []
        """What to do once it is finished, in this order."""
        self._mover, self._buffers = mover, buffers

    def wait(self, timeout: dt.timedelta = _NO_TIME) -> bool:
        """Finish it.

        Raises:
            CollectiveMisused, CollectivePeerLost, CollectiveFailed: the group is broken; every later call raises too.
        """
        if self.is_done:
            return True
        try:
            for pending in self.pendings:
                self._mover.wait(pending, timeout if timeout > _NO_TIME else self.patience)
        except Exception as error:
            self.error = error
            raise
        self._finish()
        return True

    def test(self) -> bool:
        """Whether it is finished, after having moved on what can be moved."""
        if not self.is_done and all(map(self._mover.test, self.pendings)):
            self._finish()
        return self.is_done

    def is_over(self) -> bool:
        """Whether its exchange is finished, no matter by whom; moves nothing on."""
        return all(pending.finished for pending in self.pendings)

    def _finish(self) -> None:
        self._buffers.copy_back()
        self.is_done = True
        for act in self.then:
            act()
        self.then.clear()


@uncompiled
class Handle(PythonCallbackWork):
    """What torch gets for a transfer.

    torch may keep the C++ half of this object alone (DDP does so with the work of `join`) and wait there. That half owns
    `Transfer.wait`, and so the transfer, as long as anything can wait for it.
    """

    def __init__(self, transfer: Transfer) -> None:
        super().__init__(transfer.wait)
        self.transfer = transfer
        self._future: Promise | None = None

    def wait(self, timeout: dt.timedelta = _NO_TIME) -> bool:
        return self.transfer.wait(timeout)

    def synchronize(self) -> None:
        """Wait; there are no streams."""
        self.transfer.wait()

    def block_current_stream(self) -> None:
        """Wait; there are no streams."""
        self.transfer.wait()

    def is_completed(self) -> bool:
        """Whether it is finished, after having moved on what can be moved."""
        return self.transfer.test()

    def is_success(self) -> bool:
        return self.transfer.is_done and self.transfer.error is None

    def exception(self) -> Any:
        return self.transfer.error

    def result(self) -> list[Tensor]:
        return self.transfer.results

    def source_rank(self) -> int:
        """The rank in the group that a message came from."""
        message = self.transfer.pendings[0]
        return message.peer if isinstance(message, compiled.Message) else -1

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        """A future of the tensors.

        During a backward pass (DDP and its hooks) it is completed at the end of the pass, in the order of the calls, so
        that buckets travel while gradients are computed; or earlier, if Python waits for it. At any other time this
        call waits.
        """
        if self._future is None:
            self._future = Promise(self.transfer)
            if self.transfer.is_done:
                self._future.keep()
            else:
                self.transfer.then.append(self._future.keep)
                complete_after_backward(self.transfer) if in_backward_node() else self.transfer.wait()
        return self._future


def in_backward_node() -> bool:
    """Whether this thread is at a node of a backward pass, so that a callback will come at the end of the pass."""
    # Outside a node, at the end of the pass, DDP with a static graph waits at once in C++.
    return graph_task_id() != -1 and autograd_node() is not None


def complete_inner_future(handle: Handle) -> None:
    """Make sure that the future that torch's C++ gets from a new handle without asking Python is completed.

    DDP gets it in a backward pass, lets go of the handle at once, and waits at the end of the pass. Outside a pass it
    does so for ranks that have joined already (`DDP.join`), and waits at once.
    """
    transfer = handle.transfer
    transfer.then.append(partial(_complete, PythonCallbackWork.get_future(handle), transfer.results))
    if graph_task_id() == -1 and calling_file() != _DDP:
        return
    if in_backward_node():
        complete_after_backward(transfer, ref(handle))
    else:
        transfer.wait()


def _complete(future: Future[Any], results: list[Tensor]) -> None:
    if not future.done():
        future.set_result(results)


def complete_after_backward(transfer: Transfer, holder: Callable[[], Handle | None] = lambda: None) -> None:
    """Finish it at the end of this thread's backward pass, unless it is finished earlier; there must be a pass.

    Args:
        transfer: a future of it exists.
        holder: returns the handle by which it may be waited for later; then nothing is done. None when it is gone.
    """
    number = graph_task_id()
    promised = _promised.get(number)
    if promised is None:
        promised = _promised[number] = Promised()
        # Before the callback of DDP, which waits in C++ for futures that it got before.
        queue_callback(partial(_keep_promises, promised))
    promised.append((transfer, holder))


class Promised(list[tuple[Transfer, Callable[[], Handle | None]]]):
    """Transfers of one backward pass that may have futures. The pass holds it; when the pass fails, both are gone."""


_promised: WeakValueDictionary[int, Promised] = WeakValueDictionary()
"""By the number of the backward pass."""


def _keep_promises(promised: Promised) -> None:
    while promised:
        transfer, holder = promised.pop(0)
        if holder() is None:
            transfer.wait()


class Promise(Future[Any]):
    """A future that is completed by the first to wait for it: the end of the backward pass, or Python."""

    def __init__(self, transfer: Transfer) -> None:
        super().__init__()
        self.transfer = transfer
        self.is_kept = False

    def keep(self) -> None:
        """Complete it; the transfer must be finished."""
        if not self.is_kept:
            self.is_kept = True
            self.set_result(self.transfer.results)

    def wait(self) -> Any:
        self._keep()
        return super().wait()

    def value(self) -> Any:
        self._keep()
        return super().value()

    def done(self) -> bool:
        self.transfer.test()
        return super().done()

    def then(self, callback: Callable[[Future[Any]], Any]) -> Future[Any]:
        following = Promise(self.transfer)
        # This promise's callback completes it.
        following.is_kept = True

        def follow(_: Future[Any]) -> None:
            try:
                following.set_result(callback(self))
            except Exception as error:  # noqa: BLE001 - the waiter gets it
                following.set_exception(error)

        self.add_done_callback(follow)
        return following

    def _keep(self) -> None:
        if not super().done():
            self.transfer.wait()
