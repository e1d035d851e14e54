"""What a collective is called with: torch's lists and options, and checks that need no other rank."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lockstep.rank.process_group.errors import CollectiveMisused


def options(
    kind: Any, given: Any, *, op: Any = None, root: int | None = None, timeout: dt.timedelta | None = None
) -> Any:
    """The options of a torch call: as given, or made from what its shorter forms pass instead (then it goes on).

    Args:
        kind: the class of options.
        given: such an object, or a root, a reduce op or a timeout in its place, or None.
        op, root, timeout: the same by name.
    """
    if isinstance(given, kind):
        if op is None and root is None and timeout is None:
            return given
        given = None
    made = kind()
    if isinstance(given, dt.timedelta):
        timeout = given
    elif isinstance(given, int):
        root = given
    elif given is not None:
        op = given
    if op is not None:
        made.reduceOp = op
    if root is not None:
        made.rootRank = root
    if timeout is not None:
        made.timeout = timeout
    return made


def only(tensors: Any) -> Tensor:
    """The tensor of a call, itself or in a list of one (torch's interface is from when a rank had several devices)."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise CollectiveMisused(
            f"A call takes one tensor for each rank, but got {len(tensors)}.", "Call it once for each tensor."
        )
    tensor: Tensor = tensors[0]
    return tensor


def all_of(tensors: Any) -> list[Tensor]:
    """The tensors of a call, given as one tensor or a list.

    Raises:
        CollectiveMisused: when there is none, or they differ in dtype or shape.
    """
    if isinstance(tensors, Tensor):
        return [tensors]
    if not tensors:
        raise CollectiveMisused("This call has no tensor.", "Pass one tensor.")
    for tensor in tensors[1:]:
        if tensor.dtype is not tensors[0].dtype or tensor.shape != tensors[0].shape:
            raise CollectiveMisused(
                "The tensors of one call must have the same dtype and shape.", "Make a call for each dtype and shape."
            )
    return list(tensors)


def only_list(lists: Any) -> list[Tensor]:
    if lists and isinstance(lists[0], Tensor):
        return list(lists)
    if len(lists) != 1:
        raise CollectiveMisused(
            f"A call takes one list of tensors for each rank, but got {len(lists)}.", "Call it once for each list."
        )
    return list(lists[0])


def check_same_dtype(name: str, one: Tensor, other: Tensor) -> None:
    if one.dtype is not other.dtype:
        raise CollectiveMisused(
            f"{name} needs tensors of one dtype, not {one.dtype} and {other.dtype}.", "Convert them to one dtype first."
        )


def check_count(name: str, which: str, count: int, needed: int) -> None:
    if count != needed:
        raise CollectiveMisused(
            f"{name} needs an {which} of {needed} elements here, but it has {count}.", "Give it one of that size."
        )


def check_list(size: int, name: str, tensors: Sequence[Tensor], like: Tensor | None) -> None:
    if len(tensors) != size:
        raise CollectiveMisused(
            f"{name} needs a list of {size} tensors, one for each rank, not {len(tensors)}.",
            "Give it one tensor for each rank of the group.",
        )
    for tensor in tensors:
        check_same_dtype(name, tensor, like if like is not None else tensor)
