"""Which loaders can be cut into lanes, and what to say about those written for another launcher."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from lockstep.errors import UsageError


def refuse_unsupported(loader: DataLoader[Any]) -> None:
    """Raise `UsageError`, with the fix, for a loader that cannot be cut into lanes."""
    if isinstance(loader.dataset, IterableDataset) or not isinstance(loader.dataset, Sized):
        raise UsageError(
            f"The data set {type(loader.dataset).__name__} has no length, so it cannot be cut into lanes.",
            "Use a data set with __len__ and __getitem__; for a stream, load an epoch's samples into a list first.",
        )
    if loader.batch_sampler is None:
        raise UsageError(
            "The DataLoader has batch_size=None, so lockstep cannot see its samples.",
            "Give the DataLoader batch_size= (the global batch) or batch_sampler=, and let the data set return single "
            "samples.",
        )
    own = [
        name for name in ("__iter__", "_get_iterator") if getattr(type(loader), name) is not getattr(DataLoader, name)
    ]
    if own:
        raise UsageError(
            f"{type(loader).__name__} iterates in its own way ({own[0]}), which lockstep cannot cut into lanes.",
            "Pass run.prepare a plain DataLoader over its data set, and move the rest into collate_fn.",
        )
    if len(loader.dataset) == 0:
        raise UsageError("The data set is empty.", "Check the path or the filter that it was made with.")


def leftover_of(loader: DataLoader[Any]) -> str | None:
    """What to say about a DistributedSampler that another launcher needed, or None."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if not isinstance(sampler, DistributedSampler):
        return None
    return (
        f"DistributedSampler is not needed and was removed: lockstep cuts each global batch itself, so "
        f"batch_size={loader.batch_size} is now the global batch, and set_epoch does nothing."
    )
