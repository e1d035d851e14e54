"""One rank's membership of a group, told in torch's tensors: where operations begin, and how their errors are told."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Sequence
from typing import NoReturn

import torch.distributed as dist
from torch import Tensor

from lockstep.transport.buffers import Buffers
from lockstep.transport.caller import where
from lockstep.transport.collective_errors import CollectiveMisused, error_for
from lockstep.transport.native import compiled
from lockstep.transport.work import Finished, Transfer

(BARRIER, ALL_REDUCE, REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, GATHER, SCATTER) = range(8)
"""Kinds, as numbers of native/src/control.hpp."""

TROUBLES = (compiled.GroupError, ValueError)
"""What the compiled part raises: a broken group, or a call that can never be right."""

DONE = Finished()


class Exchange:
    """Begins operations and messages, and remembers those that are under way.

    Several threads may use it; the ranks must begin the operations of a group in the same order.
    """

    def __init__(self, native: compiled.Group, patience: dt.timedelta, title: str) -> None:
        self.native, self.patience, self._title = native, patience, title
        self.is_impatient = False
        """Whether the patience is another one than the group was made with."""
        self.is_closed = False
        self.num_begun = 0
        """Operations and messages that this rank has begun."""
        self.gathered: list[Transfer] | None = None
        """Works that were begun since `_start_coalescing`."""
        self._owner = os.getpid()
        self._under_way: list[Transfer] = []
        self._most_kept = 1
        self._lock = threading.Lock()

    def call(  # noqa: PLR0917 - as the compiled part takes them; an object for each call would cost as much as the call
        self, kind: int, dtype: int, op: int, root: int, count: int, inputs: list[int], outputs: list[int],
        buffers: Buffers, results: list[Tensor], *, is_async: bool,
    ) -> dist.Work:  # fmt: skip
        """Run an operation, or begin it. Addresses and counts as `compiled.Group.begin` takes them."""
        self.num_begun += 1
        if is_async or self.is_impatient:
            try:
                pending = self.native.begin(kind, dtype, op, root, count, inputs, outputs, where())
            except TROUBLES as error:
                self.fail(error)
            work = self.follow([pending], buffers, results)
            if not is_async:
                work.wait()
            return work
        try:
            self.native.run(kind, dtype, op, root, count, inputs, outputs)
        except TROUBLES as error:
            self.fail(error)
        buffers.copy_back()
        return DONE

    def deal(  # noqa: PLR0917 - as above
        self, dtype: int, inputs: list[int], outputs: list[int], sends: list[int], receives: list[int],
        buffers: Buffers, results: list[Tensor], *, is_async: bool,
    ) -> dist.Work:  # fmt: skip
        """all_to_all with these many elements for each rank and from each rank."""
        self.num_begun += 1
        try:
            pending = self.native.begin_all_to_all(dtype, inputs, outputs, sends, receives, where())
        except TROUBLES as error:
            self.fail(error)
        work = self.follow([pending], buffers, results)
        if not is_async:
            work.wait()
        return work

    def send(self, tensor: Tensor, dtype: int, destination: int, tag: int) -> dist.Work:
        self.num_begun += 1
        buffers = Buffers()
        address = buffers.reads(tensor)
        try:
            message = self.native.send(address, tensor.nbytes, dtype, destination, tag % 2**64)
        except TROUBLES as error:
            self.fail(error)
        return self.follow([message], buffers, [tensor])

    def receive(self, tensor: Tensor, dtype: int, source: int, tag: int) -> dist.Work:
        """From any rank when `source` is the number of ranks."""
        self.num_begun += 1
        buffers = Buffers()
        address = buffers.writes(tensor)
        try:
            message = self.native.receive(address, tensor.nbytes, dtype, source, tag % 2**64)
        except TROUBLES as error:
            self.fail(error)
        return self.follow([message], buffers, [tensor])

    def follow(self, pendings: Sequence[compiled.Pending], buffers: Buffers, results: list[Tensor]) -> Transfer:
        """A work for them. Its tensors stay alive until it is finished, also when nobody keeps the work."""
        work = Transfer(self, pendings, buffers, results)
        with self._lock:
            if len(self._under_way) >= self._most_kept:
                # All of them, for one that nobody answers (a message about the end of training) may stand before finished ones.
                self._under_way = [other for other in self._under_way if not other.is_over()]
                self._most_kept = 2 * len(self._under_way) + 1
            self._under_way.append(work)
        if self.gathered is not None:
            self.gathered.append(work)
        return work

    def wait(self, pending: compiled.Pending, patience: dt.timedelta) -> None:
        patience = patience if patience > dt.timedelta(0) else self.patience
        try:
            self.native.wait(pending, patience.total_seconds())
        except TROUBLES as error:
            self.fail(error)

    def test(self, pending: compiled.Pending) -> bool:
        try:
            return self.native.test(pending)
        except TROUBLES as error:
            self.fail(error)

    def close(self) -> None:
        """Leave the group; what is under way is given up."""
        self.is_closed = True
        self.native.leave()

    def fail(self, error: Exception) -> NoReturn:
        """Raise what the compiled part has raised, as one of `collective_errors`."""
        if self.is_closed:
            raise CollectiveMisused(
                f"{self._title} was destroyed on this rank. Make a new one with dist.init_process_group or dist.new_group."
            ) from None
        if isinstance(error, compiled.GroupError):
            trouble, text = error.args
            if os.getpid() != self._owner:
                raise CollectiveMisused(f"{text} Call dist.init_process_group in the new process.") from None
            raise error_for(trouble, f"{self._title}: {text}") from None
        text = str(error)
        raise CollectiveMisused(f"{text[:1].upper()}{text[1:]}.") from None
