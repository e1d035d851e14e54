"""The loader that a prepared DataLoader becomes: a loop over it trains lane by lane, or evaluates in data-set order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any, Protocol

import torch
from accelerate.utils import send_to_device
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from samebits.errors import UsageError
from samebits.integrations.lane_loop import LaneLoop
from samebits.rank.data.loader import fetching


class LaneAccelerator(Protocol):
    """What the loader needs of its Accelerator."""

    run: Any
    loop: LaneLoop
    batches_per_step: int
    counts_local_batches: bool
    even_batches: bool
    split_batches: bool
    gradient_state: Any
    state: Any
    device: Any
    non_blocking: bool

    @property
    def logical_processes(self) -> int: ...

    @property
    def local_batches(self) -> int: ...

    def is_training(self) -> bool: ...


class WholeSteps(Sampler[Any]):
    """A sampler's order, filled up from its beginning, or cut, to a whole number of steps.

    Args:
        order: the sampler, or a batch sampler, whose batches must have one size.
        size: of a step, in samples.
        drop_last: whether what is left over is dropped.
        batch_size: of the batch sampler; None for a sampler.
    """

    def __init__(self, order: Any, size: int, *, drop_last: bool, batch_size: int | None = None) -> None:
        self._order, self._size, self._drop_last, self._batch_size = order, size, drop_last, batch_size

    def __iter__(self) -> Iterator[Any]:
        order = list(self._order) if self._batch_size is None else self._flat()
        left = len(order) % self._size
        if left and self._drop_last:
            return iter(order[: len(order) - left])
        missing = (self._size - left) % self._size if order else 0
        return iter([*order, *islice(cycle(order), missing)])

    def _flat(self) -> list[Any]:
        batches = [list(batch) for batch in self._order]
        if len(batches) > 1 and any(len(batch) != self._batch_size for batch in batches[:-1]):
            raise UsageError(
                f"The batch sampler makes batches of other sizes than {self._batch_size}, so lanes would differ in size.",
                "Use batches of one size, or a sampler and batch_size=.",
            )
        return [index for batch in batches for index in batch]

    def __len__(self) -> int:
        number = len(self._order) * (self._batch_size or 1)
        steps = number // self._size if self._drop_last else -(-number // self._size)
        return steps * self._size


class WholeStream(IterableDataset[Any]):
    """A stream, filled up from its beginning to a whole number of steps."""

    def __init__(self, stream: Any, size: int, *, drop_last: bool) -> None:
        self._stream, self._size, self._drop_last = stream, size, drop_last

    def __iter__(self) -> Iterator[Any]:
        first: list[Any] = []
        count = 0
        for sample in self._stream:
            if len(first) < self._size:
                first.append(sample)
            count += 1
            yield sample
        if first and not self._drop_last:
            yield from islice(cycle(first), -count % self._size)

    def __getattr__(self, name: str) -> Any:
        if name in ("_stream", "__setstate__"):  # a loader worker unpickles it
            raise AttributeError(name)
        return getattr(self._stream, name)


class EvaluationShard(Sampler[list[Any]]):
    """Batches for evaluation, distributed to the processes in turn: the last is filled up to its size, and all get equally many.

    Args:
        batches: the batch sampler.
        place: this process and the number of processes.
    """

    def __init__(self, batches: Any, place: tuple[int, int], *, even: bool) -> None:
        self.batches, self._place, self._even = batches, place, even

    def __iter__(self) -> Iterator[list[Any]]:
        rank, processes = self._place
        batches = [list(batch) for batch in self.batches]
        if len({len(batch) for batch in batches[:-1]}) > 1:
            raise UsageError(
                "The batch sampler of an evaluation makes batches of different sizes, which processes cannot gather.",
                "Use batches of one size.",
            )
        if self._even and batches:
            samples = [index for batch in batches for index in batch]
            size = len(batches[0])
            batches[-1] += islice(cycle(samples), max(0, size - len(batches[-1])))
            batches += [batches[number % len(batches)] for number in range(-len(batches) % processes)]
        return iter(batches[rank::processes])

    def __len__(self) -> int:
        rank, processes = self._place
        number = len(self.batches)
        return -(-number // processes) if self._even else len(range(rank, number, processes))


class LaneLoader(DataLoader[Any]):
    """A prepared DataLoader.

    Its length is that which a loader of Accelerate has on `accelerator.num_processes` processes; a loop over it has more
    batches where fewer processes do their work. Once it was evaluated, its length is the number of batches of that on this process.

    Args:
        accelerator: whose lanes the batches are.
        loader: the user's.
    """

    def __init__(self, accelerator: LaneAccelerator, loader: DataLoader[Any]) -> None:
        self._accelerator, self._loader = accelerator, loader
        self._is_stream = isinstance(loader.dataset, IterableDataset)
        batches: Any = loader.batch_sampler
        size = (
            loader.batch_size or getattr(batches, "batch_size", None) or (len(next(iter(batches))) if batches else None)
        )
        if size is None:
            raise UsageError(
                "The DataLoader has batch_size=None, so its batches cannot be lanes.", "Give it batch_size=."
            )
        processes = accelerator.logical_processes
        if accelerator.split_batches and size % processes:
            raise UsageError(
                f"split_batches=True needs a batch size that {processes} processes divide, and it is {size}.",
                f"Use a multiple of {processes}.",
            )
        self._size: int = size
        """Of the user's batches: a part of one is a lane with split_batches=True, else each is one."""
        self._lane_size: int = size // processes if accelerator.split_batches else size
        settings = fetching(loader)
        if self._is_stream:
            super().__init__(loader.dataset, batch_size=loader.batch_size, drop_last=loader.drop_last, **settings)
        else:
            super().__init__(loader.dataset, batch_sampler=batches, **settings)
        self.prepared: Any = None
        """What run.prepare made of `for_training`."""
        self.end_of_dataloader, self.remainder = False, -1
        self.rows_left: int | None = None
        """Rows of the evaluation from the current batch on that were not there before; None: all."""
        self._evaluating: DataLoader[Any] | None = None

    def for_training(self) -> DataLoader[Any]:
        """The loader of global batches, for run.prepare."""
        theirs, size = self._loader, self._lane_size * self._accelerator.batches_per_step
        settings = fetching(theirs)
        drop = bool(theirs.drop_last or getattr(theirs.batch_sampler, "drop_last", False))
        if self._is_stream:
            stream = WholeStream(theirs.dataset, size, drop_last=drop)
            return DataLoader(stream, batch_size=size, **settings)
        is_plain = type(theirs.batch_sampler) is BatchSampler
        order = theirs.sampler if is_plain else theirs.batch_sampler
        whole = WholeSteps(order, size, drop_last=drop, batch_size=None if is_plain else self._size)
        return DataLoader(theirs.dataset, batch_size=size, sampler=whole, **settings)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._accelerator.is_training():
            return self._train()
        return self._evaluate()

    def _train(self) -> Iterator[Any]:
        if (
            not self._accelerator.even_batches
            and not self._is_stream
            and not self._loader.drop_last
            and self._left_over()
        ):
            raise UsageError(
                "even_batches=False leaves the last step of an epoch without a batch for some lanes.",
                "Leave it out (the last batches are filled up from the beginning of the epoch), or use drop_last=True.",
            )
        state = self._accelerator.gradient_state
        state._add_dataloader(self)
        try:
            yield from self._accelerator.loop.batches(self.prepared)
        finally:
            state._remove_dataloader(self)

    def _left_over(self) -> int:
        return len(self._loader.dataset) % (self._lane_size * self._accelerator.batches_per_step)  # type: ignore[arg-type]

    def _evaluate(self) -> Iterator[Any]:
        of = self._accelerator
        of.loop.require_whole_steps()
        if of.loop.in_lane:
            raise UsageError(
                "A loader was evaluated inside a step, where processes are at different batches.",
                "Evaluate where accelerator.sync_gradients is true, behind optimizer.step().",
            )
        state = of.gradient_state
        before, num_rows = state.sync_gradients, self._num_rows()
        state._add_dataloader(self)
        self.rows_left, self.end_of_dataloader, of.loop.evaluates = num_rows, False, True
        try:
            with of.run._run.components.streams.elsewhere():
                loader = self._evaluating = self._evaluating or self._shard()
                batches = iter(loader)
                batch = next(batches, None)
                while batch is not None:
                    following = next(batches, None)
                    self.end_of_dataloader = following is None
                    yield send_to_device(batch, of.device, non_blocking=of.non_blocking)
                    if self.rows_left is not None:
                        self.rows_left -= self._size * of.state.num_processes
                    batch = following
        finally:
            state._remove_dataloader(self)
            state._set_sync_gradients(before)
            self.rows_left, of.loop.evaluates = None, False

    def _num_rows(self) -> int | None:
        if self._is_stream:
            return None
        if self._loader.drop_last or getattr(self._loader.batch_sampler, "drop_last", False):
            return len(self._loader) * self._size
        sampler: Any = self._loader.sampler
        return len(sampler) if type(self._loader.batch_sampler) is BatchSampler else len(self._loader.dataset)  # type: ignore[arg-type]

    def _shard(self) -> DataLoader[Any]:
        settings = fetching(self._loader)
        state = self._accelerator.state
        place = state.process_index, state.num_processes
        if self._is_stream:
            raise UsageError("A stream cannot be evaluated in lanes.", "Give the evaluation a data set with a length.")
        batches = EvaluationShard(self._loader.batch_sampler, place, even=self._accelerator.even_batches)
        return DataLoader(self._loader.dataset, batch_sampler=batches, **settings)

    def __len__(self) -> int:
        if self._evaluating is not None or (self._accelerator.counts_local_batches and self.prepared is None):
            return len(self._evaluating or self._shard())
        if self._accelerator.counts_local_batches:
            return len(self.prepared) * self._accelerator.local_batches
        return (
            -(-len(self._loader) // self._accelerator.logical_processes)
            if not self._accelerator.split_batches
            else len(self._loader)
        )

    def set_epoch(self, epoch: int) -> None:
        """Tell data set and sampler, if they want to know; the order is a function of the seed and of samebits's epoch."""
        for one in (self._loader.sampler, self._loader.dataset):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)

    @property
    def total_batch_size(self) -> int:
        """Samples of all processes' batches."""
        return self._lane_size * self._accelerator.logical_processes

    @property
    def total_dataset_length(self) -> int:
        """Samples of the data set."""
        return len(self._loader.dataset)  # type: ignore[arg-type]


def rows_of(gathered: Any, rows: int) -> Any:
    """The first rows of everything that was gathered."""
    if isinstance(gathered, torch.Tensor):
        return gathered[:rows] if gathered.dim() else gathered
    if isinstance(gathered, dict):
        return type(gathered)({name: rows_of(one, rows) for name, one in gathered.items()})
    if isinstance(gathered, tuple) and hasattr(gathered, "_fields"):
        return type(gathered)(*(rows_of(one, rows) for one in gathered))
    if isinstance(gathered, Sequence) and not isinstance(gathered, str):
        return type(gathered)(rows_of(one, rows) for one in gathered)  # type: ignore[call-arg]
    return gathered
