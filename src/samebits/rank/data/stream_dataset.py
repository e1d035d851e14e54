"""An IterableDataset that is read block by block, a block for each step, with the same samples wherever it is read.

Every rank, and every loader worker of a rank, reads the whole stream from its beginning, retains the samples of its own
lanes and drops the others. So every process sees where the stream ends, after the same sample. Each sample is read with
random streams of its own, keyed by the epoch and its place: a shuffle buffer or an augmentation that draws from torch, NumPy
or `random` draws the same in every process.

What this costs on each rank and worker: reading all samples, about 7 µs each for the random streams, and 10 to 20 for the
hash that compares what two processes have read (at most 4 KiB of each array).

Runs in: the loader's workers, or the rank where it has none.

An epoch begins with a copy of the data set (`copy.copy`), of which samebits calls `set_epoch` if there is one. So an epoch is
the same whether its process has read others before, or was just started.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, get_worker_info

from samebits.errors import SAMPLE_NOTE
from samebits.machine.torch_private import loader_worker
from samebits.protocol.layout.stream_key import Domain, stream_key
from samebits.rank.data.lane_dataset import die_with_rank
from samebits.rank.data.uses import update_digest
from samebits.rank.data.worker_progress import WorkerProgress

NOTHING_READ = "0" * 16
"""The hash of a stream of which nothing is read."""
MOST_BYTES = 4096
"""How much of an array counts in the hash, taken evenly from all of it."""


@dataclass(frozen=True)
class LaneSpan:
    """The samples of a block that this rank retains: the positions [start, end) in it."""

    start: int
    end: int
    key: int
    """Of the random stream for collating them."""


@dataclass(frozen=True)
class Resumption:
    """Where the data set can continue by its own `load_state_dict`."""

    block: int
    """How many blocks are behind it."""
    position: int
    """How many samples."""
    order: str
    """The hash of these samples."""
    state: Any


@dataclass(frozen=True)
class Request:
    """What one block is read for."""

    stream: int
    """The key of the epoch; another one begins the data set anew."""
    epoch: int
    """Its number."""
    block: int
    spans: tuple[LaneSpan, ...]
    resumption: Resumption | None = None
    attempt: int = 0
    """Another one begins the data set anew, too."""
    with_state: bool = False
    """Whether the data set's `state_dict`, from before the block, is wanted."""


class StreamDataset(Dataset[Any]):
    """The user's data set behind `__getitem__`, which the DataLoader calls with one `Request` at a time.

    Args:
        seed_process: sets the process's random streams from a key.
        batch_size: samples of a block.
        drop_last: whether a last block that is short is left out.
        progress: where workers write what they fetch; None if there are no workers.
    """

    def __init__(
        self,
        dataset: Any,
        seed: int,
        seed_process: Callable[[int], None],
        batch_size: int,
        *,
        drop_last: bool,
        collate_fn: Callable[[list[Any]], Any],
        progress: WorkerProgress | None = None,
    ) -> None:
        self.dataset, self.progress = dataset, progress
        self._seed, self._seed_process, self._collate_fn = seed, seed_process, collate_fn
        self._batch_size, self._drop_last = batch_size, drop_last
        self._stream: tuple[int, int] | None = None
        self._copy: Any = None
        self._iterator: Iterator[Any] | None = None
        self._block = self._position = 0
        self._order, self._is_over = NOTHING_READ, False

    def __getitem__(self, request: Request) -> dict[str, Any]:
        """Continue to a block and return it: where it begins, how many samples it has, the hash of the stream before and
        after it, the collated batches of its spans, and perhaps the data set's state before it.

        After the end, blocks have no samples.
        """
        if self._stream != (request.stream, request.attempt) or request.block < self._block:
            self._begin(request)
        while self._block < request.block:
            self._read((), with_samples=False)
        state = self._copy.state_dict() if request.with_state and self._position else None
        start, before = self._position, self._order
        batches = self._read(request.spans, with_samples=True)
        if self.progress is not None:
            self.progress.end()
        size = self._position - start
        return {
            "start": start, "size": size, "before": before, "after": self._order, "batches": batches, "state": state
        }  # fmt: skip

    def _begin(self, request: Request) -> None:
        """Begin anew with a copy of the data set, so that no epoch depends on what was read before it in this process."""
        self._stream, self._is_over = (request.stream, request.attempt), False
        self._block = self._position = 0
        self._order = NOTHING_READ
        self._copy = copy.copy(self.dataset) if request.resumption is None else _apart(self.dataset)
        if callable(set_epoch := getattr(self._copy, "set_epoch", None)):
            set_epoch(request.epoch)
        if (before := request.resumption) is not None:
            self._block, self._position, self._order = before.block, before.position, before.order
            self._copy.load_state_dict(before.state)
        self._seed_sample()
        self._iterator = iter(self._copy)

    def _seed_sample(self) -> None:
        assert self._stream is not None
        self._seed_process(stream_key(self._seed, Domain.FETCH, "stream", self._stream[0], self._position))

    def _read(self, spans: tuple[LaneSpan, ...], *, with_samples: bool) -> list[Any]:
        """Read a block; return the batches of its spans."""
        samples, start, order = [], self._position, self._order
        first = min((one.start for one in spans), default=0)
        last = max((one.end for one in spans), default=0)
        for place in range(0 if self._is_over else self._batch_size):
            found = self._next()
            if found is None:
                break
            # A sample that no lane of this rank has is only counted and hashed.
            samples.append(found[0] if with_samples and first <= place < last else None)
        # The short block is as if it had never been read: ranks compare the hash up to the last whole one.
        if self._is_over and self._drop_last and len(samples) < self._batch_size:
            samples, self._position, self._order = [], start, order
        self._block += 1
        batches = []
        for one in spans:
            if mine := samples[one.start : one.end]:
                self._seed_process(one.key)
                batches.append(self._collate_fn(mine))
        return batches

    def _next(self) -> tuple[Any] | None:
        """The next sample; None at the end."""
        self._seed_sample()
        if self.progress is not None:
            self.progress.begin(self._position)
        assert self._iterator is not None
        try:
            sample = next(self._iterator)
        except StopIteration:
            self._is_over = True
            return None
        except Exception as error:
            error.add_note(SAMPLE_NOTE.format(index=self._position))
            raise
        self._position += 1
        self._order = _after(self._order, sample)
        return (sample,)

    def __getattr__(self, name: str) -> Any:
        # As in `LaneDataset`.
        if name in ("dataset", "progress"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


def _apart(dataset: Any) -> Any:
    """A copy that shares nothing: `load_state_dict` may change what a shallow copy shares with the data set."""
    try:
        return copy.deepcopy(dataset)
    except Exception:  # noqa: BLE001 - whatever cannot be copied: an open file, say
        return copy.copy(dataset)


def _after(order: str, sample: Any) -> str:
    """The hash of a stream with one more sample."""
    digest = hashlib.blake2b(order.encode(), digest_size=8)
    update_digest(digest, sample, most_bytes=MOST_BYTES)
    return digest.hexdigest()


class OneWorker:
    """A `worker_init_fn` that lets the data set believe that no worker reads it, so that each worker reads all of it.

    It ties the worker's life to its rank's too (see `DieWithRank`), then calls the user's function, as for worker 0 of 1.
    """

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self._worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:
        die_with_rank()
        worker = get_worker_info()
        if worker is not None and isinstance(worker.dataset, StreamDataset):
            if worker.dataset.progress is not None:
                worker.dataset.progress.be_worker(worker_id)
            alone: Mapping[str, Any] = {"dataset": worker.dataset.dataset, "id": 0, "num_workers": 1}
            for name, value in alone.items():
                object.__setattr__(worker, name, value)
        if self._worker_init_fn is not None:
            self._worker_init_fn(0)
        # What `get_worker_info` returns from here on; Hugging Face shuffles differently for a worker 0 than for none.
        loader_worker._worker_info = None  # noqa: SLF001 - there is no public way


def as_it_is(block: Any) -> Any:
    """A block is collated already."""
    return block
