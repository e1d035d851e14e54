"""How torch's dtypes and reduce operations are told to the compiled part, as numbers of native/src/kernels/kernels.hpp."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from lockstep.transport.collective_errors import CollectiveMisused
from lockstep.transport.shared_memory import DTYPES

SUM, AVERAGE = 0, 1

_PAIRS = {torch.complex128: 0, torch.complex64: 1, torch.complex32: 2}
_BY_WIDTH = {1: 8, 2: 5, 4: 6, 8: 7}

_OPS = {hash(op): code for op, code in zip(
    (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT), range(5), strict=True
)}  # fmt: skip
_OP_NAMES = {hash(getattr(dist.ReduceOp, name)): name for name in ("BAND", "BOR", "BXOR")}


def op_code(op: Any) -> int:
    """The code of a `dist.ReduceOp`.

    Raises:
        CollectiveMisused: for the bitwise ones and PREMUL_SUM.
    """
    code = _OPS.get(hash(op))  # torch's own hash; comparing or reading `.op` costs two to four times as much
    if code is not None:
        return code
    name = _OP_NAMES.get(hash(op), "PREMUL_SUM")
    way_out = "Scale the tensor, then use SUM" if name == "PREMUL_SUM" else "Use a gloo group for it"
    raise CollectiveMisused(f"lockstep reduces with SUM, AVG, MIN, MAX and PRODUCT, not with {name}. {way_out}.")


def for_moving(dtype: torch.dtype) -> tuple[int, int]:
    """(code, how many of them make one element); every dtype can be moved, by its width if need be."""
    code = DTYPES.get(dtype)
    if code is not None:
        return code, 1
    if dtype in _PAIRS:
        return _PAIRS[dtype], 2
    width = dtype.itemsize
    return (_BY_WIDTH[width], 1) if width in _BY_WIDTH else (8, width)


def for_reducing(dtype: torch.dtype, op: int) -> tuple[int, int]:
    """(code, how many of them make one element) for a reduction.

    Raises:
        CollectiveMisused: for dtypes that cannot be added up, and for complex ones except sum and average.
    """
    code = DTYPES.get(dtype)
    if code is not None:
        return code, 1
    if dtype in _PAIRS:
        if op in {SUM, AVERAGE}:
            return _PAIRS[dtype], 2
        raise CollectiveMisused(f"Complex numbers can be reduced with SUM and AVG only; this tensor is {dtype}.")
    known = ", ".join(str(known).removeprefix("torch.") for known in DTYPES)
    raise CollectiveMisused(f"lockstep reduces {known} and complex numbers, not {dtype}. Convert the tensor first.")
