"""The process groups of a comparison inside ranks: stock Gloo, and lockstep's backend for torch.distributed."""

from __future__ import annotations

import torch.distributed as dist

import lockstep.torch_backend  # noqa: F401 - registers the backend


def gloo_group() -> dist.ProcessGroup:
    """Collective: all ranks over Gloo, whatever the default group is."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group


def lockstep_group() -> dist.ProcessGroup:
    """Collective: all ranks over our backend."""
    group: dist.ProcessGroup = dist.new_group(backend="lockstep")
    return group


def own_group() -> dist.ProcessGroup:
    """Collective: this rank alone over our backend, so nobody waits for anybody."""
    groups = [dist.new_group([rank], backend="lockstep") for rank in range(dist.get_world_size())]
    own: dist.ProcessGroup = groups[dist.get_rank()]
    return own
