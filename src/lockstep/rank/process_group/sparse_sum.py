"""The sum of sparse tensors, as DDP needs it for `nn.Embedding(sparse=True)`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.rank.process_group.errors import CollectiveMisused
from lockstep.rank.process_group.operands import Buffers


def sparse_sum(group: Any, tensor: Tensor) -> Any:
    """Replace a sparse COO tensor on every rank by the sum of all ranks' tensors, added in the order of the ranks.

    Waits; the work that it returns is finished.

    Raises:
        CollectiveMisused: on every rank, when the shapes differ; here, when the tensor is not on the CPU.
    """
    if not tensor.is_cpu:
        raise CollectiveMisused(
            f"The backend lockstep exchanges CPU tensors, but this one is on {tensor.device}.",
            "Move it with .cpu(), or use a group of another backend for it.",
        )
    mine = tensor.detach().coalesce()
    indices, values = mine.indices(), mine.values()
    about = torch.tensor([values.shape[0], tensor.sparse_dim(), *tensor.shape], device="cpu")
    abouts = [torch.empty_like(about) for _ in range(group.size())]
    group.all_gather_list(abouts, about).wait()
    if any(not torch.equal(other[1:], about[1:]) for other in abouts):
        shapes = ", ".join(f"{tuple(other[2:].tolist())} on rank {rank}" for rank, other in enumerate(abouts))
        raise CollectiveMisused(
            f"The sum of sparse tensors needs one shape, but it is {shapes}.",
            "Give the tensors the same shape on every rank.",
        )
    counts = [int(other[0]) for other in abouts]
    all_indices = [indices.new_empty((count, indices.shape[0])) for count in counts]
    all_values = [values.new_empty((count, *values.shape[1:])) for count in counts]
    group.all_gather_list(all_indices, indices.t().contiguous()).wait()
    group.all_gather_list(all_values, values).wait()
    total = torch.sparse_coo_tensor(
        torch.cat(all_indices).t(), torch.cat(all_values), tensor.shape, device="cpu", check_invariants=False
    ).coalesce()
    with torch.no_grad():
        tensor.copy_(total)  # in place; a detached view of a sparse tensor has indices of its own
    return group.exchange.follow([], Buffers(), [tensor])
