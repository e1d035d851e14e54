"""How torch's dtypes and reduce operations reach the compiled part, as numbers of native/src/kernels/kernels.hpp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.rank.process_group.errors import CollectiveMisused
from lockstep.rank.transport.shared_memory import DTYPES

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
    if code is None:  # PREMUL_SUM: torch shows its factor only this way
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
        f"lockstep reduces {names}, float8 and complex numbers, not {dtype}.", "Convert the tensor first."
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
