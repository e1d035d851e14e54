"""What a collective is called with: torch's lists of one, and checks that need no other rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lockstep.transport.collective_errors import CollectiveMisused


def only(tensors: Any) -> Tensor:
    """The tensor of a call: itself, or a list of one (torch's interface is from when a rank had several devices)."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise CollectiveMisused(f"One tensor for each rank and call, not {len(tensors)}.")
    tensor: Tensor = tensors[0]
    return tensor


def only_list(lists: Any) -> list[Tensor]:
    if lists and isinstance(lists[0], Tensor):
        return list(lists)
    if len(lists) != 1:
        raise CollectiveMisused(f"One list of tensors for each rank and call, not {len(lists)}.")
    return list(lists[0])


def check_same_dtype(name: str, one: Tensor, other: Tensor) -> None:
    if one.dtype is not other.dtype:
        raise CollectiveMisused(f"{name} needs tensors of one dtype, not {one.dtype} and {other.dtype}.")


def check_count(name: str, which: str, count: int, needed: int) -> None:
    if count != needed:
        raise CollectiveMisused(f"{name} needs an {which} of {needed} elements here, but it has {count}.")


def check_list(size: int, name: str, tensors: Sequence[Tensor], like: Tensor | None) -> None:
    if len(tensors) != size:
        raise CollectiveMisused(f"{name} needs a list of {size} tensors, one for each rank, not {len(tensors)}.")
    for tensor in tensors:
        check_same_dtype(name, tensor, like if like is not None else tensor)
