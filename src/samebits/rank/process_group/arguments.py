"""What a collective is called with: torch's lists and options, its dtypes and reduce operations as numbers, and checks that need
no other rank.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import profiler
from torch.nn import Parameter

from samebits.errors import EnvironmentFailure, PeerLost, UsageError
from samebits.machine.torch_private import dispatching
from samebits.protocol.journal.spans import spans
from samebits.rank.transport.local.native import ABORTED, DISAGREEMENT, LOST, SAME_CALLS, compiled
from samebits.rank.transport.shared_memory import DTYPES

SAME_AMOUNTS = "Receive what is sent: as many elements, in the same shape and dtype."


class CollectiveMisused(UsageError, dist.DistBackendError):  # noqa: N818 - named like its bases
    """A call that cannot be right: unsupported tensors, ranks that call different operations, a group after its end."""


class CollectivePeerLost(PeerLost, dist.DistBackendError):
    """Another rank ended, left the group or gave up while this one waits for it."""


class CollectiveFailed(EnvironmentFailure, dist.DistBackendError):
    """A rank did not come in time, or there is too little memory."""


def error_for(trouble: int, text: str) -> Exception:
    """The exception for a trouble that the compiled part reports."""
    if trouble == DISAGREEMENT:
        error = CollectiveMisused(text, SAME_CALLS if ": The ranks " in text else SAME_AMOUNTS)
        error.finding = "mismatched-collective"
        return error
    return CollectivePeerLost(text) if trouble in {LOST, ABORTED} else CollectiveFailed(text)


def options(
    kind: Any, given: Any, *, op: Any = None, root: int | None = None, timeout: dt.timedelta | None = None
) -> Any:
    """The options of a torch call: as given, or made from what its shorter forms pass instead.

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


SUM, AVERAGE = 0, 1

_PAIRS = {torch.complex128: 0, torch.complex64: 1, torch.complex32: 2}
_BY_WIDTH = {1: 8, 2: 5, 4: 6, 8: 7}
_WIDENED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)

_Op = dist.ReduceOp
_NAMES = ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
OP_CODES = {hash(getattr(_Op, name)): code for code, name in enumerate(_NAMES)}
"""By torch's own hash of an operation: comparing or reading `.op` costs two to four times as much. Not PREMUL_SUM."""


@dataclass(frozen=True)
class Terms:
    """How the terms of a reduction are passed to the compiled part."""

    op: int
    dtype: int
    width: int = 1
    """How many numbers make one element."""
    factor: float | Tensor | None = None
    """What this rank's term is multiplied by first."""
    wide: torch.dtype | None = None
    """The dtype in which the terms are added up, if it is a different one."""

    @property
    def are_tensors(self) -> bool:
        """Whether the tensors are the terms as they are."""
        return self.factor is None and self.wide is None

    def of(self, tensor: Tensor) -> Tensor:
        """The term of a tensor: itself, or a new contiguous one."""
        if self.are_tensors:
            return tensor
        term = tensor.detach().to(self.wide or tensor.dtype)
        return (term * self.factor if self.factor is not None else term).to(term.dtype).contiguous()


def terms_of(op: Any, dtype: torch.dtype) -> Terms:
    """What to add up, for a `dist.ReduceOp` and the dtype of the tensors.

    Raises:
        CollectiveMisused: for dtypes that cannot be reduced, or not with this operation.
    """
    code = OP_CODES.get(hash(op))
    factor = None
    # PREMUL_SUM: torch shows its factor only this way.
    if code is None:
        code, factor = SUM, op.__getstate__()[1]
        if not dtype.is_floating_point:
            raise CollectiveMisused(
                f"PREMUL_SUM needs a floating-point dtype, not {dtype}.", "Convert the tensor first."
            )
    known = DTYPES.get(dtype)
    if known is not None:
        return Terms(code, known, factor=factor)
    if dtype in _PAIRS:
        if code in {SUM, AVERAGE}:
            return Terms(code, _PAIRS[dtype], width=2)
        raise CollectiveMisused(
            f"Complex numbers can be reduced with SUM and AVG only; this tensor is {dtype}.",
            "Reduce torch.view_as_real(tensor) instead.",
        )
    if dtype in _WIDENED:
        return Terms(code, DTYPES[torch.float32], factor=factor, wide=torch.float32)
    names = ", ".join(str(known).removeprefix("torch.") for known in DTYPES)
    raise CollectiveMisused(
        f"samebits reduces {names}, float8 and complex numbers, not {dtype}.", "Convert the tensor first."
    )


def for_moving(dtype: torch.dtype) -> tuple[int, int]:
    """(code, how many of them make one element); every dtype can be moved, by its width if need be."""
    code = DTYPES.get(dtype)
    if code is not None:
        return code, 1
    if dtype in _PAIRS:
        return _PAIRS[dtype], 2
    width = dtype.itemsize
    return (_BY_WIDTH[width], 1) if width in _BY_WIDTH else (8, width)


@lru_cache
def tensors() -> compiled.Tensors:
    """The reader of tensors; one object per process."""
    exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    # While one of these is not False, calls do not take the short way, so that the watcher sees them.
    watchers = [
        (vars(dispatching), "_is_in_torch_dispatch_mode"),
        (vars(profiler), "_is_profiler_enabled"),
        (vars(spans), "is_taken"),
    ]
    return compiled.Tensors(exchange, [Tensor, Parameter], watchers, list(OP_CODES.items()))
