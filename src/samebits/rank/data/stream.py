"""A prepared loader over an IterableDataset: its samples are numbered as they come, and cut into steps and lanes like others.

    run.steps(loader)   -> training(...)    StreamedSteps: step by step, one step ahead
    for batch in loader -> evaluation(...)  StreamedShare: whole batches, dealt to the lanes in turn

`stream_dataset` reads it.
"""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader, Sampler

from samebits.errors import UsageError
from samebits.protocol.layout.cut import Cut
from samebits.protocol.layout.stream_key import Domain, stream_key
from samebits.protocol.skipped_steps import NONE, SkippedSteps
from samebits.rank.data.device_copies import CopyStream
from samebits.rank.data.lane_dataset import LaneIndices
from samebits.rank.data.loader import (
    FETCHING,
    Batches,
    CopiedBatches,
    Evaluate,
    LanePart,
    LoaderContext,
    PreparedLoader,
    StepPlan,
)
from samebits.rank.data.stream_dataset import (
    NOTHING_READ,
    LaneSpan,
    OneWorker,
    Request,
    Resumption,
    StreamDataset,
    as_it_is,
)
from samebits.rank.data.worker_batches import FetchedByWorkers, InnerLoader
from samebits.rank.data.worker_progress import WorkerProgress

PASSED_ON = tuple(name for name in FETCHING if name not in ("collate_fn", "worker_init_fn", "in_order"))
"""Arguments of the user's DataLoader that its reading has too."""
HOW_TO_SHUFFLE = (
    "Shuffle with the global generators of torch, NumPy or Python, which samebits seeds, or with a fixed seed."
)
Elsewhere = Callable[[], AbstractContextManager[None]]
"""Leaves the process's random streams as they were."""


@dataclass(frozen=True)
class Block:
    """One step of the stream, as this rank has read it."""

    start: int
    size: int
    """Samples; 0 after the end."""
    before: str
    """The hash of the stream before it."""
    after: str
    batches: list[Any]
    state: Any


@dataclass(frozen=True)
class StreamPosition:
    """Where in an epoch to begin."""

    first_step: int = 1
    """The run's number of the epoch's first step."""
    done: int = 0
    """Steps that a loaded state has behind it."""
    order: str = NOTHING_READ
    """The hash of the stream after these."""
    skipped: SkippedSteps = NONE
    """Steps that are passed over, by the run's numbers: they are read, and not collated."""


@dataclass(frozen=True)
class SavedStream:
    """What a state holds of a data set that has a `state_dict`."""

    state: Any
    position: int
    """Samples before it."""
    size: int
    """Samples of the step that follows."""
    after: str
    """The hash of the stream after that step: whether the data set continues with the same samples is looked up there."""


class _Requests(Sampler[Request]):
    """The sampler of a reading: what is read next, without an end."""

    requests: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.requests


class PreparedStream(PreparedLoader):
    """A prepared loader whose data set is iterated."""

    def __init__(self, loader: DataLoader[Any], context: LoaderContext, evaluate: Evaluate) -> None:
        super().__init__(loader, context, evaluate)
        self._readings: dict[str, tuple[DataLoader[Any], _Requests]] = {}

    @property
    def digest(self) -> str:
        """Equal on two ranks whose streams are cut the same way."""
        described = f"{type(self.dataset).__name__} {self.samples_per_step} {self.drop_last}"
        return hashlib.blake2b(described.encode(), digest_size=8).hexdigest()

    @property
    def samples_per_step(self) -> int:
        assert self.batch_size is not None
        return self.batch_size

    @property
    def length(self) -> int | None:
        """Steps of an epoch as far as the data set says; None if it does not."""
        try:
            return len(self)
        except TypeError:
            return None

    @property
    def has_state(self) -> bool:
        """Whether the data set can continue by itself in the middle of an epoch."""
        return all(callable(getattr(self.dataset, name, None)) for name in ("state_dict", "load_state_dict"))

    def begin_epoch(self) -> int:
        """Begin the next epoch; return its number."""
        self.epochs_begun += 1
        return self.epochs_begun - 1

    def training(
        self,
        epoch: int,
        place: StreamPosition,
        saved: SavedStream | None = None,
        *,
        with_state: bool = False,
        elsewhere: Elsewhere = nullcontext,
    ) -> StreamedSteps:
        """Read an epoch from `place` on.

        Args:
            place: where in it.
            saved: how the data set can continue there by itself.
            with_state: whether its own state is wanted before each step.
            elsewhere: leaves the process's random streams as they were before it reads.

        Raises:
            UsageError: when the samples before `place` are not those that were there once.
        """
        return StreamedSteps(self, epoch, place, saved, with_state=with_state and self.has_state, elsewhere=elsewhere)

    def read(
        self,
        epoch: int,
        first: int,
        *,
        resumption: Resumption | None = None,
        attempt: int = 0,
        with_state: bool = False,
        skips: Callable[[int], bool] = lambda block: False,  # noqa: ARG005
    ) -> Iterator[Block]:
        """The blocks of a training epoch from number `first` on; after the end, empty ones.

        `skips`: says of which blocks no batch is wanted.
        """
        lanes = self.context.lanes
        bounds = Cut(self.samples_per_step, self.context.num_lanes).bounds

        def spans(block: int) -> tuple[LaneSpan, ...]:
            if skips(block):
                return ()
            return tuple(LaneSpan(bounds[lane], bounds[lane + 1], self._key(epoch, block, lane)) for lane in lanes)

        request = Request(self._stream(epoch, 0), epoch, first, (), resumption, attempt, with_state)
        return self._blocks("training", request, spans)

    def evaluation(self, step: int, limit: int | None = None) -> StreamedShare:
        """This rank's share of an evaluation after `step` steps of training; of at most `limit` batches of all ranks."""
        mine = self.context.lanes

        def spans(block: int) -> tuple[LaneSpan, ...]:
            lane = block % self.context.num_lanes
            return (LaneSpan(0, self.samples_per_step, self._key(step, block, lane, kind=1)),) if lane in mine else ()

        stream = self._stream(step, 1)
        blocks = self._blocks("evaluation", Request(stream, 0, 0, ()), spans)
        return StreamedShare(self, itertools.islice(blocks, limit), f"{self.digest} {stream} {limit}")

    def _stream(self, number: int, kind: int) -> int:
        return stream_key(self.context.seed, Domain.EPOCH, self.context.number, number, kind)

    def _key(self, number: int, block: int, lane: int, kind: int = 0) -> int:
        return stream_key(self.context.seed, Domain.FETCH, self.context.number, "stream", number, block, lane, kind)

    def _blocks(self, purpose: str, first: Request, spans: Callable[[int], tuple[LaneSpan, ...]]) -> Iterator[Block]:
        reading, requests = self._reading(purpose)
        # Each worker gets one of the first requests.
        at_first = max(self.num_workers, 1)

        def wanted() -> Iterator[Request]:
            # Where the stream ends is known only when it has ended, so there is always another request.
            for number in itertools.count():
                resumption = first.resumption if number < at_first else None
                yield replace(first, block=(block := first.block + number), spans=spans(block), resumption=resumption)

        requests.requests = wanted()
        found = FetchedByWorkers(reading) if isinstance(reading, InnerLoader) else iter(reading)
        return (Block(**block) for block in found)

    def _reading(self, purpose: str) -> tuple[DataLoader[Any], _Requests]:
        if purpose not in self._readings:
            settings = {name: getattr(self, name) for name in PASSED_ON if hasattr(self, name)}
            if self.num_workers:
                settings["worker_init_fn"] = OneWorker(self.worker_init_fn)
            progress = WorkerProgress(self.num_workers) if self.num_workers else None
            dataset = StreamDataset(
                self.dataset,
                self.context.seed,
                self.context.seed_process,
                self.samples_per_step,
                drop_last=self.drop_last,
                collate_fn=self.collate_fn,
                progress=progress,
            )
            requests = _Requests()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                settings |= {"batch_size": None, "sampler": requests, **self.pinning(as_it_is)}
                reading = InnerLoader(dataset, progress, **settings) if progress else DataLoader(dataset, **settings)
            self._readings[purpose] = (reading, requests)
        return self._readings[purpose]

    def moved(self, batches: list[Any]) -> Batches:
        """Batches of this rank, to its device."""
        if self.context.device.type == "cpu":
            return Batches(iter(batches))
        self._copies = self._copies or CopyStream(self.context.device)
        return CopiedBatches(iter(batches), self._copies, ahead=True)


class StreamedSteps:
    """The steps of a stream's epoch that are left, read one step ahead."""

    def __init__(
        self,
        loader: PreparedStream,
        epoch: int,
        place: StreamPosition,
        saved: SavedStream | None,
        *,
        with_state: bool,
        elsewhere: Elsewhere,
    ) -> None:
        self.done, self.goes_on_by = place.done, ""
        """Steps that are done; and, where there were some at the beginning, how the data set resumed."""
        self._loader, self._epoch, self._elsewhere = loader, epoch, elsewhere
        self._first_step, self._skipped = place.first_step, place.skipped
        self._with_state = with_state
        self.order = place.order
        """The hash of the stream up to here."""
        self._next: Block | None = None
        self._blocks: Iterator[Block] = iter(())
        with self._outside():
            first = self._open(place.order, saved)
        self.num_samples = first.start
        """The samples of the steps so far."""
        self._first, self._is_resumed = first.after, bool(place.done)
        full, rest = divmod(self.num_samples, loader.samples_per_step)
        self._mine = full * self._num_mine(loader.samples_per_step) + self._num_mine(rest)

    def _num_mine(self, size: int) -> int:
        """This rank's samples of a step of `size` samples."""
        context = self._loader.context
        sizes = Cut(self._loader.samples_per_step, context.num_lanes).sizes(size)
        return sum(sizes[context.lanes.start : context.lanes.stop])

    def _open(self, order: str, saved: SavedStream | None) -> Block:
        """Begin to read; by the data set's own state only if the step that follows is then the one that followed."""
        if self.done and saved is not None and self._loader.has_state:
            resumption = Resumption(self.done, saved.position, order, saved.state)
            # The first block shows whether the data set continues with the samples that came next once.
            first = self._try(resumption)
            if first is not None and (first.size, first.after) == (saved.size, saved.after):
                self._next, self.goes_on_by = first, "its own load_state_dict"
                return first
        self._blocks = self._read(attempt=1)
        self._next = next(self._blocks)
        if self._next.before != order:
            raise UsageError(
                f"The state was saved after {self.done} steps of an epoch that had other samples, or another order.",
                f"Use the same data, batch size and seed, or another name for a new run. {HOW_TO_SHUFFLE}",
            )
        if self.done:
            self.goes_on_by = "reading the epoch again from its beginning"
        return self._next

    def _read(self, **how: Any) -> Iterator[Block]:
        # [Note: why the reading does not refer to these steps]
        # It would be a cycle, and loader workers would live until the next collection of garbage.
        first_step, skipped = self._first_step, self._skipped
        skips = lambda block: first_step + block in skipped  # noqa: E731
        return self._loader.read(self._epoch, self.done, with_state=self._with_state, skips=skips, **how)

    def _try(self, resumption: Resumption) -> Block | None:
        self._blocks = self._read(resumption=resumption)
        try:
            return next(self._blocks)
        except Exception:  # noqa: BLE001 - whatever the data set's own code raises: it is read from its beginning instead
            return None

    def _outside(self) -> AbstractContextManager[None]:
        return nullcontext() if self._loader.num_workers else self._elsewhere()

    def look(self) -> Block:
        """The next step; empty after the end.

        Raises:
            UsageError: when two loader workers have read different streams.
        """
        if self._next is None:
            with self._outside():
                found = next(self._blocks)
            if found.before != self.order:
                raise UsageError(
                    f"The loader workers read different streams: after {self.done} steps, one has other samples than the "
                    "one before it.",
                    f"Give the data set no random numbers or clock of its own. {HOW_TO_SHUFFLE}",
                )
            self._next = found
        return self._next

    def take(self) -> tuple[StepPlan, Batches]:
        """The next step, of which there must be one, and its batches."""
        block, self._next = self.look(), None
        context, number = self._loader.context, self.done
        cut = Cut(self._loader.samples_per_step, context.num_lanes)
        lanes = cut.lanes_of(range(block.start, block.start + block.size))
        parts = tuple(LanePart(number, lane, LaneIndices(lanes[lane], 0)) for lane in context.lanes if lanes[lane])
        self.done, self.order = number + 1, block.after
        plan = StepPlan(cut.of_step(self._first_step + number, block.size), parts)
        self.num_samples, self._mine = self.num_samples + block.size, self._mine + plan.num_mine
        return plan, self._loader.moved(block.batches)

    def pass_over(self) -> None:
        """Leave the next step out, which must be one that is to be passed over."""
        block, self._next = self.look(), None
        self.done, self.order = self.done + 1, block.after
        self.num_samples, self._mine = self.num_samples + block.size, self._mine + self._num_mine(block.size)

    @property
    def num_skipped(self) -> int:
        """The samples of the steps so far that were passed over; all steps but the last are full ones."""
        size = self._loader.samples_per_step
        steps = self._skipped.between(self._first_step, self._first_step + self.done - 1)
        return sum(min(size, self.num_samples - (step - self._first_step) * size) for step in steps)

    @property
    def is_over(self) -> bool:
        """Whether no step is left; reads the next one."""
        return self.look().size == 0

    def read_again(self) -> bool:
        """Whether the first epoch has the same samples in its first step when it is read again; True for later epochs.

        Call it once no step is left. Where a rank reads alone, there is no other comparison.
        """
        if self._epoch or self._is_resumed or self._loader.num_workers > 1:
            return True
        with self._outside():
            try:
                return next(self._loader.read(self._epoch, 0, attempt=2)).after == self._first
            except Exception:  # noqa: BLE001 - a data set that gives its samples once
                return False

    @property
    def length(self) -> int | None:
        """Steps of the epoch, as far as the data set says."""
        return self._loader.length

    @property
    def whole(self) -> list[int]:
        """As of `PlannedSteps`; what the samples are, ranks compare in each step."""
        return [self.num_samples, 0]

    @property
    def mine(self) -> list[int]:
        return [self._mine, 0]

    def account(self) -> dict[str, Any]:
        """Which samples the steps so far have used: those of the stream from its beginning, each once."""
        is_over = self._next is not None and self._next.size == 0
        used = self.num_samples - self.num_skipped
        return {
            "steps": self.done,
            "of_steps": self.done if is_over else None,
            "samples": used,
            "different": used,
            "of_samples": self.num_samples if used < self.num_samples else None,
            "order": self.order,
        }

    @property
    def saved(self) -> SavedStream | None:
        """What a state holds here of the data set's own state."""
        block = self._next
        if block is None or block.state is None:
            return None
        return SavedStream(block.state, block.start, block.size, block.after)


class StreamedShare:
    """The batches of a stream that this rank evaluates."""

    def __init__(self, loader: PreparedStream, blocks: Iterator[Block], digest: str) -> None:
        self.digest, self.num_samples = digest, 0
        """The digest is the same on every rank; the number of samples is known at the end, over all ranks."""
        self._loader, self._blocks = loader, blocks

    def __iter__(self) -> Iterator[tuple[LanePart, Any]]:
        for number, block in enumerate(self._blocks):
            if block.size == 0:
                return
            self.num_samples += block.size
            lane = number % self._loader.context.num_lanes
            indices = LaneIndices(range(block.start, block.start + block.size), 0)
            for batch in self._loader.moved(block.batches):
                yield LanePart(number, lane, indices), batch
