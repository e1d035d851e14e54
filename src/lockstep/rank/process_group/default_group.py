"""torch.distributed's default group as the script uses it: lockstep's own exchanges have groups of their own."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from lockstep.rank.process_group.membership import Membership


def num_exchanges() -> int | None:
    """How many collectives this rank's script and its libraries have begun in the default group.

    Other groups are not counted, nor, under NCCL or Gloo, messages between two ranks. A group with a backend for each kind
    of device (`cpu:gloo,cuda:nccl`) has those of all. None if one of them does not count.
    """
    group = dist.group.WORLD if dist.is_initialized() else None
    if group is None:
        return 0
    if isinstance(group, Membership):
        return group.exchange.num_begun
    try:  # there is no public way
        backends: list[Any] = [group._get_backend(device) for device in group._device_types]  # noqa: SLF001
        different = {id(backend): backend for backend in backends}.values()
        return sum(int(backend._get_sequence_number_for_group()) for backend in different)  # noqa: SLF001
    except RuntimeError:
        return None
