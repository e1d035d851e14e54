"""One rank's membership of a group, in terms of torch's tensors: where operations begin, and how their errors raise."""

from __future__ import annotations

import datetime as dt
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import torch.distributed as dist
from torch import Tensor

from samebits.protocol.journal.waiting_note import range_of_wait
from samebits.rank.process_group.arguments import CollectiveMisused, error_for, tensors
from samebits.rank.process_group.operands import Buffers
from samebits.rank.process_group.work import DONE, Handle, Transfer
from samebits.rank.transport.local.native import SHUT_DOWN, compiled

(BARRIER, ALL_REDUCE, REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, GATHER, SCATTER) = range(8)
"""Kinds of operation, as numbered in native/src/control.hpp."""
NAMES = ("barrier", "all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "gather", "scatter")
"""The same, in traces."""

_NO_TIME = dt.timedelta(0)
LAST_PATIENCE_S = 5.0
"""How long a group that ends waits for works under way that were not waited for: the others are as far, as a rule."""
LOOK_S = 0.0005
"""Between two looks at them."""

TROUBLES = (compiled.GroupError, ValueError)
"""What the compiled part raises: a broken group, or a call that can never be right."""


class Exchange:
    """Begins operations and messages, and remembers those that are under way.

    Several threads may use it; the ranks must begin the operations of a group in the same order.
    """

    def __init__(self, native: compiled.Group, patience: dt.timedelta, title: str) -> None:
        self.native, self.patience, self._title = native, patience, title
        self.reads = tensors()
        self.is_impatient = False
        """Whether the patience differs from the one that the group was made with."""
        self.is_closed = False
        self.num_begun = 0
        """Operations and messages that this rank has begun."""
        self.gathered: list[Handle] | None = None
        """Works begun since `_start_coalescing`."""
        self._owner = os.getpid()
        self._under_way: list[Transfer] = []
        self._most_kept = 1
        self._lock = threading.Lock()

    def call(  # noqa: PLR0917 - as the compiled part takes them; an object for each call would cost as much as the call
        self, kind: int, dtype: int, op: int, root: int, count: int, inputs: list[int], outputs: list[int],
        shape: tuple[int, ...], buffers: Buffers, results: list[Tensor], opts: Any,
    ) -> dist.Work:  # fmt: skip
        """Run an operation, or begin it. Addresses, counts and `shape` as `compiled.Group.begin` takes them.

        Args:
            opts: torch's options of the call: whether the caller continues meanwhile, and how long to wait.
        """
        self.num_begun += 1
        # `run` takes no timeout: it has the one that the group was made with.
        if opts.asyncOp or self.is_impatient:
            try:
                pending = self.native.begin(kind, dtype, op, root, count, inputs, outputs, shape)
            except TROUBLES as error:
                self.fail(error)
            return self._started([pending], buffers, results, opts)
        try:
            with range_of_wait(NAMES[kind]):
                self.native.run(kind, dtype, op, root, count, inputs, outputs, shape)
        except TROUBLES as error:
            self.fail(error)
        buffers.copy_back()
        return DONE

    def moves(self, kind: int, output: Any, given: Any, opts: Any) -> bool:
        """The short way of a call with plain tensors whose caller waits. False: nothing has happened, it is another one."""
        if self.is_impatient:
            return False
        try:
            is_done = self.reads.move(self.native, kind, output, given, opts)
        except TROUBLES as error:
            self.num_begun += 1
            self.fail(error)
        self.num_begun += is_done
        return is_done

    def deal(  # noqa: PLR0917 - as above
        self, dtype: int, inputs: list[int], outputs: list[int], sends: list[int], receives: list[int],
        buffers: Buffers, results: list[Tensor], opts: Any,
    ) -> dist.Work:  # fmt: skip
        """all_to_all with these numbers of elements for each rank and from each rank."""
        self.num_begun += 1
        if opts.asyncOp or self.is_impatient or opts.timeout > _NO_TIME:
            try:
                pending = self.native.begin_all_to_all(dtype, inputs, outputs, sends, receives)
            except TROUBLES as error:
                self.fail(error)
            return self._started([pending], buffers, results, opts)
        try:
            with range_of_wait("all_to_all"):
                self.native.run_all_to_all(dtype, inputs, outputs, sends, receives)
        except TROUBLES as error:
            self.fail(error)
        buffers.copy_back()
        return DONE

    def _started(
        self, pendings: list[compiled.Pending], buffers: Buffers, results: list[Tensor], opts: Any
    ) -> dist.Work:
        work = self.follow(pendings, buffers, results)
        if opts.timeout > _NO_TIME:
            work.transfer.patience = opts.timeout
        if not opts.asyncOp:
            work.wait()
        return work

    def barrier(self, opts: Any) -> dist.Work:
        """Wait for all ranks, at most as long as the options say."""
        if opts.timeout <= _NO_TIME:
            return self.call(BARRIER, 0, 0, -1, 0, [], [], (), Buffers(), [], opts)
        return self._started([self.begin_barrier()], Buffers(), [], opts)

    def begin_barrier(self) -> compiled.Operation:
        self.num_begun += 1
        try:
            return self.native.begin(BARRIER, 0, 0, -1, 0, [], [])
        except TROUBLES as error:
            self.fail(error)

    def agree_on_group(self, ranks: Sequence[int]) -> None:
        """Make sure that all ranks of this group are about to make one group of the same ranks.

        Raises:
            CollectiveMisused: on every rank, when one calls something else, or means other ranks.
        """
        self.num_begun += 1
        try:
            self.native.agree_on_group(ranks)
        except TROUBLES as error:
            self.fail(error)

    def send(self, tensor: Tensor, dtype: int, destination: int, tag: int) -> Handle:
        self.num_begun += 1
        buffers = Buffers()
        address = buffers.reads(tensor)
        try:
            message = self.native.send(address, tensor.nbytes, dtype, destination, tag % 2**64, tensor.shape)
        except TROUBLES as error:
            self.fail(error)
        return self.follow([message], buffers, [tensor])

    def receive(self, tensor: Tensor, dtype: int, source: int, tag: int) -> Handle:
        """Receive from `source`, or from any rank if it is the number of ranks."""
        self.num_begun += 1
        buffers = Buffers()
        address = buffers.writes(tensor)
        try:
            message = self.native.receive(address, tensor.nbytes, dtype, source, tag % 2**64, tensor.shape)
        except TROUBLES as error:
            self.fail(error)
        handle = self.follow([message], buffers, [tensor])
        handle.transfer.is_receive = True
        return handle

    def follow(self, pendings: Sequence[compiled.Pending], buffers: Buffers, results: list[Tensor]) -> Handle:
        """Make a work for them. Its tensors stay alive until it is finished, even if the work is dropped."""
        transfer = Transfer(self, pendings, buffers, results)
        with self._lock:
            if len(self._under_way) >= self._most_kept:
                # All of them: one that gets no answer (a message about the end of training) may precede finished ones.
                self._under_way = [other for other in self._under_way if not other.is_over()]
                self._most_kept = 2 * len(self._under_way) + 1
            self._under_way.append(transfer)
        handle = Handle(transfer)
        if self.gathered is not None:
            self.gathered.append(handle)
        return handle

    def wait(self, pending: compiled.Pending, patience: dt.timedelta) -> None:
        patience = patience if patience > dt.timedelta(0) else self.patience
        try:
            with range_of_wait("the end of a collective"):
                self.native.wait(pending, patience.total_seconds())
        except TROUBLES as error:
            self._fail_waiting(error)

    def test(self, pending: compiled.Pending) -> bool:
        try:
            return self.native.test(pending)
        except TROUBLES as error:
            self._fail_waiting(error)

    def close(self) -> None:
        """Leave the group. What is under way is finished if the others come soon, as Gloo's threads do; else given up."""
        # While an exception is under way the others may never come, so nothing is waited for.
        if sys.exc_info()[0] is None:
            self._finish_under_way()
        self.is_closed = True
        self.native.leave()

    def _finish_under_way(self) -> None:
        """Finish collectives and sent messages, and messages that have arrived; see `close`."""
        with self._lock:
            left = [transfer for transfer in self._under_way if not transfer.is_done]
        deadline = time.monotonic() + LAST_PATIENCE_S
        while left and time.monotonic() < deadline:
            for transfer in tuple(left):
                with suppress(dist.DistBackendError):
                    if not transfer.test() and not transfer.is_receive:
                        continue
                left.remove(transfer)
            if left:
                time.sleep(LOOK_S)

    def _fail_waiting(self, error: Exception) -> NoReturn:
        """The same as `fail`, for what was under way: if the group's end is all that has failed, say so."""
        if self.is_closed and str(error.args[-1]) == SHUT_DOWN:
            raise CollectiveMisused(
                f"{self._title} was destroyed on this rank before this operation was finished, so it has no result.",
                "Call wait() of its work before dist.destroy_process_group.",
            ) from None
        self._raise(error)

    def fail(self, error: Exception) -> NoReturn:
        """Raise what the compiled part raised, as one of the classes in `errors`."""
        if self.is_closed:
            raise CollectiveMisused(
                f"{self._title} was destroyed on this rank.",
                "Make a new one with dist.init_process_group or dist.new_group.",
            ) from None
        self._raise(error)

    def _raise(self, error: Exception) -> NoReturn:
        if isinstance(error, compiled.GroupError):
            trouble, text = error.args
            if os.getpid() != self._owner:
                raise CollectiveMisused(text, "Call dist.init_process_group in the new process.") from None
            raise error_for(trouble, f"{self._title}: {text}") from None
        text = str(error)
        fix = "Name a rank of the group." if "no rank" in text else "Convert the tensor, or use another operation."
        raise CollectiveMisused(f"{text[:1].upper()}{text[1:]}.", fix) from None
