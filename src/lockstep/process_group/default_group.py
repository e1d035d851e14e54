"""torch.distributed's default group as the script uses it: lockstep's own exchanges have groups of their own."""

from __future__ import annotations

import torch.distributed as dist

from lockstep.process_group.membership import Membership


def num_exchanges() -> int | None:
    """How many collectives this rank's script and its libraries have begun in the default group.

    Other groups are not counted, nor, under NCCL or Gloo, messages between two ranks. None if the group does not count:
    one with a backend for each kind of device (`init_process_group("cpu:gloo,cuda:gloo")`).
    """
    group = dist.group.WORLD if dist.is_initialized() else None
    if group is None:
        return 0
    if isinstance(group, Membership):
        return group.exchange.num_begun
    try:
        return int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way
    except RuntimeError:
        return None
