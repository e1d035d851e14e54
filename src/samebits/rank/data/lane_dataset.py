"""A data set that is fetched lane by lane, each with its own random stream.

One process, no matter which, fetches a whole lane in order. So augmentation draws the same numbers with 0 or 8 loader
workers, and on 1 or 8 ranks.

Runs in: the loader's workers, or the rank where it has none.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.utils.data import Dataset, get_worker_info

from samebits.errors import SAMPLE_NOTE
from samebits.rank.data.kept_between_lanes import OwnState
from samebits.rank.data.worker_progress import COLLATING, ONE, SEVERAL, WorkerProgress, note

PR_SET_PDEATHSIG = 1
MOST_SHOWN = 8
TOGETHER_NOTE = "samebits: while fetching samples {index} of the data set at once"
COLLATE_NOTE = "samebits: while collating samples {index} of the data set"


class LaneIndices(list[Any]):
    """The indices of one lane of one step, with the keys of the random streams for fetching them."""

    def __init__(self, indices: Iterable[Any], key: int, sample_keys: list[int] | None = None, place: str = "") -> None:
        super().__init__(indices)
        self.key = key
        self.place = place
        """For people: `epoch 2, step 13`."""
        self.sample_keys = sample_keys
        """If given, each sample is fetched with its own stream: used to compare different cuts."""


class LaneDataset(Dataset[Any]):
    """The user's data set behind `__getitems__`, which the DataLoader calls with one `LaneIndices` at a time.

    Args:
        dataset: the user's; every other attribute is looked up there.
        seed_process: sets the process's random streams from a key.
        progress: where workers write what they fetch; None if there are no workers.
    """

    def __init__(
        self, dataset: Any, seed_process: Callable[[int], None], progress: WorkerProgress | None = None
    ) -> None:
        self.dataset = dataset
        self._seed_process = seed_process
        self.progress = progress
        self.present = LaneIndices((), 0)
        """What was fetched last."""
        self.own_state: OwnState | None = None
        """What looks around the first lanes."""

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: LaneIndices) -> list[Any]:
        self.present = indices
        if self.own_state is not None:
            self.own_state.enter_lane()
        if self.progress is not None:
            self.progress.enter(indices.place)
        try:
            return self._lane(indices)
        finally:
            if self.progress is not None:
                self.progress.end()

    def leave(self) -> None:
        """A lane is fetched and put together."""
        if self.own_state is not None and self.own_state.leave_lane() and self.progress is not None:
            self.progress.keep([one.name, one.where] for one in self.own_state.found.values())

    def _lane(self, indices: LaneIndices) -> list[Any]:
        self._seed_process(indices.key)
        together = getattr(self.dataset, "__getitems__", None)
        if together is not None and indices.sample_keys is None:
            if self.progress is not None:
                self.progress.begin(indices[0], SEVERAL if len(indices) > 1 else ONE)
            return self._together(together, list(indices))
        keys: Sequence[int | None] = indices.sample_keys or [None] * len(indices)
        dataset, progress, found = self.dataset, self.progress, []
        for index, key in zip(indices, keys, strict=True):
            if key is not None:
                self._seed_process(key)
            if progress is not None:
                progress.begin(index)
            try:
                found.append(dataset[index])
            except Exception as error:
                error.add_note(note(SAMPLE_NOTE, index, self.present.place))
                raise
        return found

    def _together(self, fetch: Callable[[list[Any]], list[Any]], indices: list[Any]) -> list[Any]:
        try:
            return fetch(indices)
        except Exception as error:
            error.add_note(note(TOGETHER_NOTE, shown(indices), self.present.place))
            raise

    def __getattr__(self, name: str) -> Any:
        # Unpickling asks for attributes before there are any; looking them up in `dataset` would never end.
        if name in ("dataset", "_seed_process", "progress", "present", "own_state"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


class Collate:
    """A `collate_fn` that names the samples which the user's cannot put together.

    Args:
        dataset: what fetches the samples, in the same process.
    """

    def __init__(self, dataset: LaneDataset, collate_fn: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._collate_fn = dataset, collate_fn

    def __call__(self, samples: list[Any]) -> Any:
        indices, progress = self._dataset.present, self._dataset.progress
        if progress is not None and indices:
            progress.begin(indices[0], COLLATING)
        try:
            batch = self._collate_fn(samples)
        except Exception as error:
            error.add_note(note(COLLATE_NOTE, shown(indices), indices.place))
            raise
        finally:
            if progress is not None:
                progress.end()
        self._dataset.leave()
        return batch


def shown(indices: Sequence[Any]) -> str:
    """`3, 17, 20`; of many the first ones."""
    more = len(indices) - MOST_SHOWN
    return ", ".join(map(str, indices[:MOST_SHOWN])) + (f" and {more} more" if more > 0 else "")


def die_with_rank() -> None:
    """Tie a worker's life to its rank's: torch's own watchdog takes 3.5 s to notice that the rank is gone, the kernel none."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class DieWithRank:
    """A `worker_init_fn` that calls the user's in a worker that ends with its rank."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self._worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:
        die_with_rank()
        worker = get_worker_info()
        if worker is not None and isinstance(worker.dataset, LaneDataset):
            if worker.dataset.progress is not None:
                worker.dataset.progress.be_worker(worker_id)
            # The user's function and data set expect the user's data set there, which torch makes read-only.
            object.__setattr__(worker, "dataset", worker.dataset.dataset)
        if self._worker_init_fn is not None:
            self._worker_init_fn(worker_id)
