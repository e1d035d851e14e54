"""Gathering per-sample rows of an evaluation in data-set order."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import UsageError
from lockstep.rank.transport.contract import Transport


def gather_rows(rows: Tensor, indices: Sequence[Any], transport: Transport, device: torch.device, where: str) -> Tensor:
    """All ranks' rows, one per sample, in data-set order: exactly `len(dataset)` of them, on every rank.

    Args:
        rows: this rank's rows: dimension 0 has one row for each sample that the last evaluation gave this rank, in
            the order in which they came. Any dtype and device; ranks may have different numbers of rows, and one without
            any does not know of which form the others' are.
        indices: the data-set indices of those samples.
        transport: the ranks.
        device: this rank's.
        where: the line of the script.

    Raises:
        UsageError: on every rank, when a rank has more or fewer rows than samples, or rows have different forms.
    """
    told = transport.all_gather_object(
        {
            "rows": len(rows),
            "indices": list(map(_number, indices)),
            "form": [list(rows.shape[1:]), str(rows.dtype), rows.device.type],
        },
        "gather",
        where,
    )
    for rank, other in enumerate(told):
        if other["rows"] != len(other["indices"]):
            raise UsageError(
                f"run.gather got {other['rows']} rows on rank {rank}, but the last evaluation gave it "
                f"{len(other['indices'])} samples.",
                "Collect one row per sample in `for batch in loader`, concatenate them, and gather after the loop.",
            )
    form = next((other["form"] for other in told if other["rows"]), told[0]["form"])
    if any(other["rows"] and other["form"] != form for other in told):
        raise UsageError(
            "run.gather got rows of different shapes, dtypes or devices on different ranks.",
            "Give every row the same shape, dtype and kind of device: pad them, or gather numbers.",
        )
    shape, dtype, kind = form
    longest = max(other["rows"] for other in told)
    padded = torch.zeros(
        (longest, *shape), dtype=getattr(torch, dtype.removeprefix("torch.")), device=_here(kind, rows, device)
    )
    if len(rows):
        padded[: len(rows)] = rows.detach()
    run = [part[: other["rows"]] for part, other in zip(transport.all_gather(padded), told, strict=True)]
    order = [index for other in told for index in other["indices"]]
    return torch.cat(run)[
        torch.tensor(sorted(range(len(order)), key=order.__getitem__), dtype=torch.long, device="cpu")
    ]


def _here(kind: str, rows: Tensor, device: torch.device) -> torch.device:
    """This rank's device of a kind that other ranks' rows are on."""
    return next((one for one in (rows.device, device) if one.type == kind), torch.device(kind))


def _number(index: Any) -> int:
    try:
        return operator.index(index)
    except TypeError:
        problem = f"run.gather needs whole numbers as indices, but the sampler gives {index!r}."
        raise UsageError(problem, "Give the data set indices from 0 to its length.") from None
