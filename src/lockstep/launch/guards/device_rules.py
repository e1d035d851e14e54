"""Which CUDA device a rank's script may take: pure decisions with their sentences.

Devices are pinned, never masked: `cuda:1` is the same device in every process of a node, and local rank r has cuda:r.
"""

from __future__ import annotations

from lockstep.errors import UsageError
from lockstep.handover.environment import Position


def check_device_index(index: int, position: Position, gpus: int) -> None:
    """Raise `UsageError` for a device that does not exist, with the likely reason.

    Args:
        index: what the script gave to `torch.cuda.set_device`.
        position: the rank's.
        gpus: how many devices torch sees.
    """
    if index < gpus:
        return
    if index == position.rank != position.local_rank:
        raise UsageError(
            f"torch.cuda.set_device({index}) got the global rank, but devices are numbered per node, and this one "
            f"has {gpus}.",
            f'Use int(os.environ["LOCAL_RANK"]), which is {position.local_rank} here.',
        )
    if position.local_world_size > gpus:
        raise UsageError(
            f"torch.cuda.set_device({index}): {position.local_world_size} ranks were started, but torch sees {gpus} "
            f"GPU{'s' if gpus != 1 else ''} here.",
            f"Start {max(gpus, 1)}, or let ranks share GPUs with index % {max(gpus, 1)}.",
        )
    raise UsageError(
        f"torch.cuda.set_device({index}): torch sees {gpus} GPU{'s' if gpus != 1 else ''} here, counted from 0.",
        f'Use int(os.environ["LOCAL_RANK"]), which is {position.local_rank} here.',
    )


def crowded_device(index: int | None, position: Position, gpus: int) -> str | None:
    """A note about a model on device 0 in a rank that has a device of its own; None where all is well."""
    if index != 0 or position.local_rank == 0 or gpus < position.local_world_size:
        return None
    return (
        f"rank {position.rank}: the model is on cuda:0, which local rank 0 uses too, while cuda:{position.local_rank} "
        f"is free. Use .cuda() without an index, or .to(f\"cuda:{{os.environ['LOCAL_RANK']}}\")."
    )
