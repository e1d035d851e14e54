"""One number from the bits of a tensor: whole numbers only, so it is exact, and any flipped bit changes it.

A tensor is a table with rows of `COLUMNS` elements; columns and rows are added up, so two elements that change places
change a column's sum or, inside a column, two rows'. Sums wrap around. What is small gets a CRC-32 of its bytes instead.
See docs/design/0025 for what else was measured.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of each element size, to look at bits."""

COLUMNS = 4093
"""A prime, so that rows of a weight which change places hardly ever match."""
SUMMED = 32 * COLUMNS
"""The number of elements added up at a time on a CPU: half a megabyte of float32, which is read twice, the second time
from the cache. From memory (256 rows) it takes 1.7 times as long."""
SUMMED_ELSEWHERE = 8 * SUMMED
"""The same on other devices, because torch copies elements that are narrower than their sum."""
SMALL_BYTES = 1 << 16
"""Below this, a CRC-32 (4 GB/s) is faster than sums (20 GB/s), which take 30 us for their calls."""


def bit_sums(tensors: Sequence[Tensor]) -> list[int]:
    """One number from the bits of each tensor, which is dense, of any shape, dtype and device. 7 ms for 10 M float32.

    Of all tensors on a GPU there is one copy to the host, for which it waits.
    """
    whole = [torch.view_as_real(one).reshape(-1) if one.is_complex() else one for one in tensors]
    rows = [one.view(INTEGERS[one.element_size()]).reshape(-1) for one in whole]
    elsewhere = {row.device for row in rows if row.device.type != "cpu"}
    if not elsewhere:
        return [_crc(_sums(row)) for row in rows]
    told = [_sums(row) for row in rows]
    for device in elsewhere:
        there = [number for number, row in enumerate(told) if row.device == device]
        copies = torch.cat([told[number].view(torch.uint8) for number in there]).cpu()
        parts = torch.split(copies, [told[number].nbytes for number in there])
        for number, part in zip(there, parts, strict=True):
            told[number] = part
    return list(map(_crc, told))


def packed(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same dense tensors, with the small ones of each dtype and device joined: fewer calls for many scalars."""
    small: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    large: list[Tensor] = []
    for one in tensors:
        if one.numel() * one.element_size() < SMALL_BYTES:
            small.setdefault((one.dtype, one.device), []).append(one.reshape(-1))
        else:
            large.append(one)
    return [*map(torch.cat, small.values()), *large]


def _sums(row: Tensor) -> Tensor:
    """What a CRC is taken of: the sums of columns and rows, or the row itself."""
    size = row.numel() // COLUMNS * COLUMNS
    if row.numel() * row.element_size() < SMALL_BYTES or not size:
        return row
    dtype = torch.int64 if row.element_size() == 8 else torch.int32  # sums wrap around
    columns = torch.zeros(COLUMNS, dtype=dtype, device=row.device)
    rows: list[Tensor] = [columns]
    for part in torch.split(row[:size], SUMMED if row.device.type == "cpu" else SUMMED_ELSEWHERE):
        table = part.view(-1, COLUMNS)
        columns += table.sum(0, dtype=dtype)
        rows.append(table.sum(1, dtype=dtype))
    columns[: row.numel() - size] += row[size:]
    rows.append(row[size:].sum(0, keepdim=True, dtype=dtype))
    return torch.cat(rows)


def _crc(row: Tensor) -> int:
    return zlib.crc32(from_dlpack(row).numpy().data)  # .numpy() alone would mark the storage as one with other users
