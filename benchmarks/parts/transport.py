"""Collectives of the shared-memory transport beside Gloo's and beside the same work without a library: rows C1 to C4 and C9.

samebits run -n 2 -m benchmarks.parts.transport --rounds 24 --cases '[...]' --to times.json
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import astuple
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import samebits.torch_backend  # noqa: F401 - registers the backend
from benchmarks.limits import (
    KIB,
    LEAST_COPIES,
    LEAST_WORK,
    WAYS,
    WINDOW_WAYS,
    Bare,
    build,
    evicting_bytes,
    last_cache_bytes,
    num_buffers,
    repeats,
)
from benchmarks.parts.collectives import (
    BY_TORCH,
    ORDINARY,
    WINDOWS,
    Act,
    Buffer,
    Case,
    buffers,
    by_handle,
    by_least_copies,
    by_least_work,
    by_torch,
    check,
    of_many_ranks,
    of_two_ranks,
    pool_bytes,
    window_memory,
)
from benchmarks.parts.sides import GLOO, Turn, rank_parser, slowest, take_turns
from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, compare
from samebits.rank.transport.local.rendezvous import meet

WARM_UP, TRIED = 4, 3
"""Rounds that do not count, and those that choose a way of copying."""
FLAG_BYTES = 128
"""What bare.cpp wants for each rank's flag."""
LEAST_COPIED = 64 * KIB
"""Below this a copy is not the limit; what counts is how fast two cores can signal each other."""


def measure_transport(num_ranks: int, rounds: int) -> list[Line]:
    """All cases of two ranks, or those of more ranks than cores."""
    cases = of_two_ranks() if num_ranks == 2 else of_many_ranks()
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


class Bench:
    """One rank's groups and memory."""

    def __init__(self, cases: list[Case], bare: Bare) -> None:
        dist.init_process_group("gloo")
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        self.gloo, self.samebits = dist.group.WORLD, dist.new_group(backend="samebits")
        store = dist.PrefixStore("benchmarks", dist.group.WORLD.get_group_store())
        self.handle = meet(store, self.rank, self.num_ranks, lambda: "benchmarks")
        most = max(pool_bytes(case, self.count(case), self.num_ranks) for case in cases)
        self._kept, self._window = window_memory(self.handle, most)
        self._memory = torch.empty(most // 4)
        self._other = torch.ones(evicting_bytes(last_cache_bytes()) // 4)
        self._bare = bare
        self._shared = self.handle.allocate(bare.exchange_bytes(self.num_ranks))
        self._flags = self.handle.allocate(FLAG_BYTES * self.num_ranks, once=True)

    def count(self, case: Case) -> int:
        """How many buffers take turns."""
        return num_buffers(case.num_bytes, cold=case.cold)

    def sides(self, case: Case) -> dict[str, list[Act]]:
        """Each side's operations, one for each buffer, checked."""
        ordinary, placed = (self._buffers(memory, case) for memory in (self._memory, self._window))
        name = case.collective
        found: dict[str, list[Act]] = {
            GLOO: [by_torch(self.gloo, name, buffer) for buffer in ordinary],
            WINDOWS: [by_handle(self.handle, name, buffer) for buffer in placed],
            ORDINARY: [by_handle(self.handle, name, buffer) for buffer in ordinary],
            BY_TORCH: [by_torch(self.samebits, name, buffer) for buffer in ordinary],
        }
        if name != "barrier" and case.num_bytes >= LEAST_COPIED:
            found[LEAST_COPIES] = self._least_copies(case, ordinary)
            found[LEAST_WORK] = self._least_work(case, placed)
        for side, acts in found.items():
            first = placed[0] if side in {WINDOWS, LEAST_WORK} else ordinary[0]
            if not check(name, acts[0], first, self.rank, self.num_ranks):
                raise SystemExit(f"{case.what}: {side} gives wrong numbers on rank {self.rank}")
        return found

    def _buffers(self, memory: Tensor, case: Case) -> list[Buffer]:
        return buffers(memory, case, self.count(case), self.num_ranks)

    def _least_copies(self, case: Case, ordinary: list[Buffer]) -> list[Act]:
        """In the way that is quickest for this case, found out here."""
        bare, shared, name = self._bare, self._shared.address(0), case.collective
        return self._quickest(
            case,
            {way: [by_least_copies(bare, shared, way, self.handle, name, each) for each in ordinary] for way in WAYS},
        )

    def _least_work(self, case: Case, placed: list[Buffer]) -> list[Act]:
        """The same in windows."""
        group, window, flags, name = self.handle, self._kept, self._flags.address(0), case.collective
        ways = {
            way: [by_least_work(self._bare, flags, way, group, window, name, each) for each in placed]
            for way in WINDOW_WAYS
        }
        return self._quickest(case, ways)

    def _quickest(self, case: Case, ways: dict[Any, list[Act]]) -> list[Act]:
        times = self._timed(case, {str(way): acts for way, acts in ways.items()}, TRIED)
        return ways[min(ways, key=lambda way: median(times[str(way)]))]

    def measure(self, case: Case, rounds: int) -> dict[str, list[float]]:
        """Nanoseconds of one operation, of the slowest rank, for each side and round."""
        return self._timed(case, self.sides(case), rounds)

    def _timed(self, case: Case, sides: dict[str, list[Act]], rounds: int) -> dict[str, list[float]]:
        often = repeats(case.num_bytes if case.collective != "barrier" else 0)
        acts = {side: cycle(of_side) for side, of_side in sides.items()}

        def turn(side: str) -> Turn:
            following = acts[side]

            def act() -> None:
                for _ in range(often):
                    next(following)()

            return act

        def prepare(side: str) -> None:
            if case.cold:
                self._other.sum()
            else:
                next(acts[side])()

        barrier = by_handle(self.handle, "barrier", Buffer(self._memory[:1], self._memory[:1]))
        times = take_turns(
            {side: turn(side) for side in acts}, rounds, warm_up=WARM_UP, barrier=barrier, before=prepare
        )
        return {side: [time / often for time in values] for side, values in slowest(times).items()}


def main() -> None:
    parser = rank_parser(bare=True)
    parser.add_argument("--cases", type=json.loads, required=True)
    options = parser.parse_args()
    cases = [Case("", *told) for told in options.cases]
    bench = Bench(cases, Bare(options.bare))
    measured: list[Any] = [bench.measure(case, options.rounds) for case in cases]
    if bench.rank == 0:
        options.to.write_text(json.dumps(measured))
    bench.handle.leave()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
