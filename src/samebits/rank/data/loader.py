"""The loader that `run.prepare` returns: the user's DataLoader, fetched lane by lane.

It is a new DataLoader with the same data set, sampler, batch size and attributes. `run.steps(loader)` trains with it,
lane by lane; iterating over it evaluates: whole batches, each on one rank, so a single rank sees `len(loader)` of them.
The samples themselves come from stock DataLoaders inside, one for training and one for evaluation, so worker processes,
pinning and prefetching are torch's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, Sampler
from torch.utils.data.distributed import DistributedSampler

from samebits.errors import UsageError
from samebits.protocol.layout.cut import Cut, StepCut
from samebits.protocol.layout.stream_key import Domain, stream_key
from samebits.rank.data.device_copies import CPU, CollatePinnable, Copy, CopyStream
from samebits.rank.data.kept_between_lanes import OwnState
from samebits.rank.data.lane_dataset import Collate, DieWithRank, LaneDataset, LaneIndices
from samebits.rank.data.order import EpochPlan, LazyIterable, LazyList, plan_epoch, undistributed
from samebits.rank.data.worker_batches import FetchedByWorkers, InnerLoader
from samebits.rank.data.worker_progress import WorkerProgress
from samebits.rank.look.verdict import Named

OWN_ORDER_FIX = "Leave generator= out: samebits keys the order by the run's seed and the epoch."


def refuse_unsupported(loader: DataLoader[Any]) -> None:
    """Raise `UsageError`, with the fix, for a loader that cannot be cut into lanes."""
    is_stream = isinstance(loader.dataset, IterableDataset)
    if not is_stream and not isinstance(loader.dataset, Sized):
        raise UsageError(
            f"The data set {type(loader.dataset).__name__} has no length, so it cannot be cut into lanes.",
            "Give it __len__ and __getitem__, or make it a torch.utils.data.IterableDataset.",
        )
    if is_stream and isinstance(loader.dataset, IterDataPipe):
        raise UsageError(
            "A data pipe of torch shuffles and splits in its own way, which depends on the loader workers.",
            "Write an IterableDataset whose __iter__ yields the samples.",
        )
    if getattr(loader, "in_order", True) is False:
        raise UsageError(
            "The DataLoader has in_order=False, so its batches would come in the order of the clock.", "Leave it out."
        )
    if loader.batch_sampler is None:
        raise UsageError(
            "The DataLoader has batch_size=None, so samebits cannot see its samples.",
            "Give the DataLoader batch_size= (the global batch) or batch_sampler=, and let the data set return single "
            "samples.",
        )
    own = [
        name for name in ("__iter__", "_get_iterator") if getattr(type(loader), name) is not getattr(DataLoader, name)
    ]
    if own and not is_stateful(loader):
        raise UsageError(
            f"{type(loader).__name__} iterates in its own way ({own[0]}), which samebits cannot cut into lanes.",
            "Pass run.prepare a plain DataLoader over its data set, and move the rest into collate_fn.",
        )
    if not is_stream and len(loader.dataset) == 0:  # type: ignore[arg-type]
        raise UsageError("The data set is empty.", "Check the path or the filter that it was made with.")


def is_stateful(loader: DataLoader[Any]) -> bool:
    """Whether it is torchdata's StatefulDataLoader: a DataLoader that can say how far it is, which samebits's states do."""
    kind = type(loader)
    return kind.__name__ == "StatefulDataLoader" and kind.__module__.startswith("torchdata.")


def own_order(loaders: Sequence[DataLoader[Any]]) -> str:
    """Why a state could not bring back the order of some loader's samples; empty when it can."""
    for number, loader in enumerate(loaders, 1):
        samplers = (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
        if any(getattr(one, "generator", None) is not None for one in samplers):
            return f"The order of loader {number} comes from a generator of its own, which a state does not hold."
    return ""


def leftover_of(loader: DataLoader[Any]) -> str | None:
    """What to say about what samebits does itself, or None: a DistributedSampler that another launcher needed, say."""
    if is_stateful(loader):
        return (
            "samebits's states hold the place in the epoch, so StatefulDataLoader is used as a plain DataLoader: its "
            "state_dict is not needed."
        )
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if not isinstance(sampler, DistributedSampler):
        return None
    return (
        f"DistributedSampler is not needed and was removed: samebits cuts each global batch itself, so "
        f"batch_size={loader.batch_size} is now the global batch, and set_epoch does nothing."
    )


class Batches(Iterator[Any]):
    """Batches as the DataLoader yields them, for ranks on the CPU.

    Args:
        fetched: the DataLoader's iterator, or one over its workers' batches.
    """

    def __init__(self, fetched: Iterator[Any]) -> None:
        self._fetched = fetched

    def __next__(self) -> Any:
        return next(self._fetched)

    def look_ahead(self) -> None:
        """Begin with the next batch, now that the current lane's work is queued.

        Draws from the process's random streams, so the caller sets them afterwards.
        """


class Watched(Iterator[Any]):
    """A training epoch's batches; notices plain attributes of the data set, or a subset's, that the script changes between two.

    Workers hold copies from the epoch's beginning, those that persist from the first one's; without workers the change is seen.
    """

    def __init__(self, fetched: Iterator[Any], loader: PreparedLoader) -> None:
        self._fetched, self._loader = fetched, loader
        if not (loader.persistent_workers and loader.copied):
            loader.copied = _plain(loader.dataset)

    def __next__(self) -> Any:
        loader = self._loader
        if not loader.changed:
            now, copied = _plain(loader.dataset), loader.copied
            loader.changed = next((one for one in now if now[one] is not copied.get(one) != now[one]), "")
        batch = next(self._fetched)
        if not loader.num_workers:
            # What fetching changes is the data set's own.
            loader.copied = _plain(loader.dataset)
        return batch


def _plain(dataset: Any) -> dict[str, Any]:
    found = getattr(dataset, "__dict__", {})
    inner = _plain(found["dataset"]) if "dataset" in found else {}
    return inner | {name: value for name, value in found.items() if type(value) in (bool, int, float, str, type(None))}


class CopiedBatches(Batches):
    """Batches for a GPU, copied on their own stream.

    Args:
        fetched: the DataLoader's iterator.
        ahead: whether the next batch may be fetched before it is requested, as loader workers do.
    """

    def __init__(self, fetched: Iterator[Any], copies: CopyStream, *, ahead: bool) -> None:
        super().__init__(fetched)
        self._copies, self._ahead = copies, ahead
        self._under_way: list[Copy] = []
        self._failure: Exception | None = None

    def __next__(self) -> Any:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if not self._under_way:
            self._under_way.append(self._copies.begin(next(self._fetched)))
        return self._copies.hand_over(self._under_way.pop())

    def look_ahead(self) -> None:
        if not self._ahead or self._under_way or self._failure is not None:
            return
        try:
            self._under_way.append(self._copies.begin(next(self._fetched)))
        except Exception as failure:  # noqa: BLE001 - the end, or a data set's error: raised with the next batch
            self._failure = failure


@dataclass(frozen=True)
class LoaderContext:
    """Everything that a loader needs to know about the run."""

    seed: int
    number: int
    """Which of the run's loaders it is, so two loaders draw different augmentation."""
    lanes: range
    """The lanes that this rank carries."""
    num_lanes: int
    seed_process: Callable[[int], None]
    device: torch.device = CPU
    """Where the rank's batches go."""
    per_sample: bool = False
    """Whether each sample has its own random stream (how `verify` compares different cuts)."""


@dataclass(frozen=True)
class LanePart:
    """One lane's part of a step."""

    step: int
    """The step's number in the epoch, from 0."""
    lane: int
    indices: LaneIndices


@dataclass(frozen=True)
class StepPlan:
    """One step of an epoch as this rank trains on it."""

    cut: StepCut
    parts: tuple[LanePart, ...]
    """Those of this rank's lanes, in order; empty lanes are left out."""

    @property
    def num_mine(self) -> int:
        return sum(len(part.indices) for part in self.parts)


class _Assigned(Sampler[LaneIndices]):
    """The batch sampler of an inner loader: this rank's parts, replaced for each epoch."""

    parts: Sequence[LanePart] = ()

    def __iter__(self) -> Iterator[LaneIndices]:
        return (part.indices for part in self.parts)

    def __len__(self) -> int:
        return len(self.parts)


Evaluate = Callable[["PreparedLoader", int | None], Iterator[Any]]
"""Yields the batches of this rank, of at most so many global ones."""


class PreparedLoader(DataLoader[Any]):
    """A DataLoader whose steps are cut into lanes.

    Args:
        loader: the user's loader; it is not changed.
        context: what the loader needs to know about the run and this rank.
        evaluate: what plain iteration does.

    Raises:
        UsageError: when the loader cannot be cut into lanes.
    """

    def __init__(self, loader: DataLoader[Any], context: LoaderContext, evaluate: Evaluate) -> None:
        refuse_unsupported(loader)
        with warnings.catch_warnings():
            # The user's own DataLoader has already given these warnings.
            warnings.simplefilter("ignore")
            super().__init__(loader.dataset, **_sampling(loader), **fetching(loader))
        self.context = context
        self.epochs_begun = 0
        self.evaluated: list[Any] = []
        """Data-set indices of the samples that this rank got in the last evaluation."""
        self.left_at = ""
        """The line of the last evaluation if the script left it early, where that makes other numbers."""
        self.copied: dict[str, Any] = {}
        self.changed = ""
        """A plain attribute of the data set that the script has changed inside an epoch."""
        self._evaluate = evaluate
        self._copies: CopyStream | None = None
        self._inner: dict[str, tuple[DataLoader[Any], _Assigned]] = {}

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self._evaluate(self, None)

    def first(self, num_batches: int) -> FirstBatches:
        """The first `num_batches` batches, to evaluate on: the same ones on any number of ranks, each on one of them.

        Raises:
            UsageError: for anything but a whole number of at least 1.
        """
        if not isinstance(num_batches, int) or num_batches < 1:
            raise UsageError(
                f"loader.first needs a whole number of batches, at least 1, but got {num_batches!r}.",
                "Write `for batch in loader.first(20)`.",
            )
        return FirstBatches(self, num_batches)

    def evaluate(self, num_batches: int | None) -> Iterator[Any]:
        """The batches of this rank, of the first `num_batches`; None: of all."""
        return self._evaluate(self, num_batches)

    def plan_training(self, record: Mapping[str, Any] | None = None) -> EpochPlan:
        """Draw the order of the next epoch, unless a state has it: `EpochPlan.packed`.

        The process is left in the epoch's stream; the caller sets another one.
        """
        self.epochs_begun += 1
        return EpochPlan.unpacked(record) if record is not None else self._plan(self.epochs_begun - 1, 0)

    def plan_evaluation(self, step: int, limit: int | None = None) -> EpochPlan:
        """Draw the order of an evaluation after `step` steps of training, however many evaluations came before.

        `limit`: only of its first so many batches.
        """
        plan = self._plan(step, 1)
        return plan if limit is None else replace(plan, steps=plan.steps[:limit])

    def _plan(self, number: int, kind: int) -> EpochPlan:
        context = self.context
        context.seed_process(stream_key(context.seed, Domain.EPOCH, context.number, number, kind))
        return plan_epoch(self)

    def cut(self, plan: EpochPlan, first_step: int) -> Sequence[StepPlan]:
        """What this rank trains on, step by step. `first_step` is the run's number of the epoch's first step."""
        cut = Cut(plan.batch_size, self.context.num_lanes)

        def planned(number: int) -> StepPlan:
            samples = plan.steps[number]
            parts = self._parts(number, first_step, cut.lanes_of(samples))
            return StepPlan(cut.of_step(first_step + number, len(samples)), parts)

        return LazyList(planned, len(plan.steps))

    def parts(self, plan: EpochPlan, steps: Sequence[StepPlan], left_out: Sequence[int] = ()) -> Sequence[LanePart]:
        """What is fetched for `steps`, those of `plan`, in order; nothing of those that are `left_out`, by their place."""
        cut, lanes = Cut(plan.batch_size, self.context.num_lanes), self.context.lanes
        parts_of = {size: sum(cut.sizes(size)[lane] > 0 for lane in lanes) for size in plan.counts}
        number = sum(parts_of[size] * number for size, number in plan.counts.items())
        without = frozenset(left_out)
        return LazyIterable(
            lambda: (part for place in range(len(steps)) if place not in without for part in steps[place].parts),
            number - sum(parts_of[len(plan.steps[place])] for place in without),
        )

    def _parts(self, number: int, first_step: int, lanes: Sequence[Sequence[Any]]) -> tuple[LanePart, ...]:
        return tuple(
            LanePart(number, lane, self._tagged(lanes[lane], first_step + number, lane, evaluation=False))
            for lane in self.context.lanes
            if lanes[lane]
        )

    def share(self, plan: EpochPlan) -> list[LanePart]:
        """What this rank evaluates, in order: whole batches, dealt to the lanes in turn. A single rank has them all."""
        # Whole batches, so that a mean that the script takes of one is over the same samples on any number of ranks.
        dealt = ((batch, batch % self.context.num_lanes) for batch, size in enumerate(plan.sizes) if size)
        return [
            LanePart(batch, lane, self._tagged(plan.steps[batch], batch, lane, evaluation=True))
            for batch, lane in dealt
            if lane in self.context.lanes
        ]

    def _tagged(self, indices: Sequence[Any], step: int, lane: int, evaluation: bool) -> LaneIndices:
        context = self.context
        place = (context.number, step, lane, int(evaluation))
        sample_keys = None
        if context.per_sample:
            sample_keys = [stream_key(context.seed, Domain.FETCH, str(index)) for index in indices]
        where = f"evaluation, batch {step + 1}" if evaluation else f"epoch {self.epochs_begun}, step {step}"
        return LaneIndices(indices, stream_key(context.seed, Domain.FETCH, *place), sample_keys, where)

    def fetch(self, parts: Sequence[LanePart], evaluation: bool) -> Batches:
        """Fetch the batches of `parts`, in order, to the rank's device."""
        inner, assigned = self._inner_loader("evaluation" if evaluation else "training")
        assigned.parts = parts
        fetched: Iterator[Any] = FetchedByWorkers(inner, len(parts)) if isinstance(inner, InnerLoader) else iter(inner)
        fetched = fetched if evaluation or not _plain(self.dataset) else Watched(fetched, self)
        if self.context.device.type == "cpu":
            return Batches(fetched)
        self._copies = self._copies or CopyStream(self.context.device)
        # [Note: why batches are fetched ahead only with workers]
        # Without workers the rank reads the data set itself, and the script may change it between steps. Ranks with many
        # lanes would read some of it too early, the others would not.
        return CopiedBatches(fetched, self._copies, ahead=self.num_workers > 0)

    def kept(self) -> list[Named]:
        """What this rank, or its workers, have found that the data set and what belongs to it keep between lanes."""
        found: list[Named] = []
        for dataset in [cast("LaneDataset", inner.dataset) for inner, _ in self._inner.values()]:
            found += dataset.own_state.found.values() if dataset.own_state is not None else ()
            found += (Named(*one) for one in dataset.progress.kept()) if dataset.progress is not None else ()
        return list(dict.fromkeys(found))

    def pinning(self, collate_fn: Callable[[Any], Any]) -> dict[str, Any]:
        """The arguments with which an inner loader's batches can be copied while the GPU computes."""
        if self.context.device.type != "cuda":
            return {"collate_fn": collate_fn}
        if not self.num_workers:
            # Without workers there is no pinning thread; `CopyStream` pins instead.
            return {"collate_fn": collate_fn, "pin_memory": False}
        return {"collate_fn": CollatePinnable(collate_fn), "pin_memory": True}

    def has_fetched(self, purpose: str) -> bool:
        """Whether any rank has fetched batches for "training" or "evaluation"."""
        return purpose in self._inner

    def _inner_loader(self, purpose: str) -> tuple[DataLoader[Any], _Assigned]:
        if purpose not in self._inner:
            assigned = _Assigned()
            settings = fetching(self)
            if self.num_workers:
                settings["worker_init_fn"] = DieWithRank(self.worker_init_fn)
            progress = WorkerProgress(self.num_workers) if self.num_workers else None
            dataset = LaneDataset(self.dataset, self.context.seed_process, progress)
            dataset.own_state = OwnState(self.dataset, self.collate_fn)
            collate_fn = Collate(dataset, self.collate_fn)
            settings |= {"batch_sampler": assigned, **self.pinning(collate_fn), "in_order": True}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                inner = InnerLoader(dataset, progress, **settings) if progress else DataLoader(dataset, **settings)
            self._inner[purpose] = (inner, assigned)
        elif self.num_workers:  # those of a first epoch have looked
            cast("LaneDataset", self._inner[purpose][0].dataset).own_state = None
        return self._inner[purpose]


class FirstBatches:
    """The first batches of a prepared loader, what `loader.first(k)` returns; each loop over it evaluates on them."""

    def __init__(self, loader: PreparedLoader, num_batches: int) -> None:
        self._loader, self._num_batches = loader, num_batches

    def __iter__(self) -> Iterator[Any]:
        return self._loader.evaluate(self._num_batches)

    def __len__(self) -> int:
        """Of all ranks together."""
        return min(self._num_batches, len(self._loader))


FETCHING = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)
"""Arguments of a DataLoader that do not affect which samples it takes."""


def _sampling(loader: DataLoader[Any]) -> dict[str, Any]:
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_size is None:
        return {"batch_sampler": loader.batch_sampler}
    return {"batch_size": loader.batch_size, "sampler": undistributed(loader.sampler), "drop_last": loader.drop_last}


def fetching(loader: DataLoader[Any]) -> dict[str, Any]:
    """The arguments of a DataLoader that do not affect which samples it takes."""
    return {name: getattr(loader, name) for name in FETCHING if hasattr(loader, name)}
