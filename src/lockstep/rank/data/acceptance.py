"""Which loaders can be cut into lanes, and what to say about those written for another launcher."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe
from torch.utils.data.distributed import DistributedSampler

from lockstep.errors import UsageError

OWN_ORDER_FIX = "Leave generator= out: lockstep keys the order by the run's seed and the epoch."


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
            "The DataLoader has batch_size=None, so lockstep cannot see its samples.",
            "Give the DataLoader batch_size= (the global batch) or batch_sampler=, and let the data set return single "
            "samples.",
        )
    own = [
        name for name in ("__iter__", "_get_iterator") if getattr(type(loader), name) is not getattr(DataLoader, name)
    ]
    if own and not is_stateful(loader):
        raise UsageError(
            f"{type(loader).__name__} iterates in its own way ({own[0]}), which lockstep cannot cut into lanes.",
            "Pass run.prepare a plain DataLoader over its data set, and move the rest into collate_fn.",
        )
    if not is_stream and len(loader.dataset) == 0:  # type: ignore[arg-type]
        raise UsageError("The data set is empty.", "Check the path or the filter that it was made with.")


def is_stateful(loader: DataLoader[Any]) -> bool:
    """Whether it is torchdata's StatefulDataLoader: a DataLoader that can say how far it is, which lockstep's states do."""
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
    """What to say about what lockstep does itself, or None: a DistributedSampler that another launcher needed, say."""
    if is_stateful(loader):
        return (
            "lockstep's states hold the place in the epoch, so StatefulDataLoader is used as a plain DataLoader: its "
            "state_dict is not needed."
        )
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if not isinstance(sampler, DistributedSampler):
        return None
    return (
        f"DistributedSampler is not needed and was removed: lockstep cuts each global batch itself, so "
        f"batch_size={loader.batch_size} is now the global batch, and set_epoch does nothing."
    )
