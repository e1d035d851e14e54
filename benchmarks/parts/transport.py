"""Collectives of the shared-memory transport beside Gloo's and beside the same work without a library: rows C1 to C4 and C9."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path

from benchmarks.bare import build
from benchmarks.cases import (
    BY_TORCH,
    GLOO,
    LEAST_COPIES,
    LEAST_WORK,
    ORDINARY,
    WINDOWS,
    Case,
    of_many_ranks,
    of_two_ranks,
)
from benchmarks.measurement import Measurement
from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, compare


def transport_measurements(rounds: int) -> list[Measurement]:
    """Two ranks, and more ranks than cores."""
    return [
        Measurement("transport, 2 ranks", partial(_measure, of_two_ranks(), 2, rounds)),
        *(Measurement(f"transport, {n} ranks", partial(_measure, of_many_ranks(), n, rounds)) for n in (4, 8)),
    ]


def _measure(cases: Sequence[Case], num_ranks: int, rounds: int) -> list[Line]:
    told = json.dumps([astuple(case)[1:4] for case in cases])
    with tempfile.TemporaryDirectory() as folder:
        options = ["--rounds", rounds, "--cases", told, "--bare", build(Path(folder))]
        measured = measure_in_ranks("transport", num_ranks, options)
    return [line for case, times in zip(cases, measured, strict=True) for line in lines_of(case, num_ranks, times)]


def lines_of(case: Case, num_ranks: int, times: dict[str, list[float]]) -> list[Line]:
    """One line for each of our ways: windows, then ordinary tensors and torch.distributed, which have a limit of their own."""
    goals = dict(case.goals)
    what = case.what if num_ranks == 2 else f"{case.what}, {num_ranks} ranks"
    limits = {WINDOWS: LEAST_WORK, ORDINARY: LEAST_COPIES, BY_TORCH: LEAST_COPIES}
    found = []
    for side in (WINDOWS, ORDINARY, BY_TORCH):
        if side in times and not (case.collective == "barrier" and side == ORDINARY):
            share = case.limit_goal if side == WINDOWS else 0.0
            aim = Aim(case.row, what, goals.get(side, 0.0), share)
            limit = limits[side], times.get(limits[side], ())
            found.append(compare(aim, (side, times[side]), (GLOO, times[GLOO]), limit))
    return found
