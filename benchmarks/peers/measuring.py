"""Every contestant's turns at every size, in rounds; who fails is told and left out."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.limits import last_cache_bytes
from benchmarks.peers.building import build
from benchmarks.peers.cases import FEW_SIZES, FIRST, SIZES, Amount, PeerCase, amount, cases, num_buffers
from benchmarks.peers.contestants import Contestant, Field, contestants
from benchmarks.peers.meeting import PeerFailed, Ranks
from benchmarks.peers.table import Row
from lockstep.cli.under_way import UnderWay
from lockstep.machine.cores import usable_cores
from lockstep.machine.processes import adopt_orphans

INSTALLED = Path(__file__).parents[2] / "build" / "peers"


def measure_peers(numbers: Sequence[int], *, quick: bool, under_way: UnderWay) -> list[Row]:
    """The rows of every number of ranks."""
    for problem in build(INSTALLED, INSTALLED / "programs"):
        under_way.say(problem)
    adopt_orphans()  # so that no launcher's helpers are left to a process 1 that does not reap them
    rounds, sizes = (3, FEW_SIZES) if quick else (5, SIZES)
    return [row for number in numbers for row in _measure(number, sizes, rounds, under_way)]


def _measure(num_ranks: int, sizes: Sequence[int], rounds: int, under_way: UnderWay) -> list[Row]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-peers-")))
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        place = Field(INSTALLED, INSTALLED / "programs", folder / "turns", num_ranks, usable_cores().count)
        listening.bind(str(place.socket))
        listening.listen()
        present = Present(under_way, num_ranks)
        for contestant in contestants(place):
            if contestant.missing:
                under_way.say(f"{contestant.name} is not installed: {contestant.missing}")
            else:
                present.start(stack, contestant, folder, listening)
        return present.measured(cases(sizes, num_ranks, last_cache_bytes()), rounds)


class Present:
    """The contestants that are there. Use `start` for each, then `measured`."""

    def __init__(self, under_way: UnderWay, num_ranks: int) -> None:
        self._under_way, self._num_ranks = under_way, num_ranks
        self._ranks: list[Ranks] = []
        self._amounts: dict[tuple[str, PeerCase], Amount] = {}

    def start(self, stack: ExitStack, contestant: Contestant, folder: Path, listening: socket.socket) -> None:
        """Start one; whoever does not come is told."""
        ranks = Ranks(contestant, folder / f"{contestant.name}.log")
        stack.push(
            lambda kind, *_: ranks.end(hard=kind is not None)
        )  # also when a person loses patience with the start
        try:
            ranks.gather(listening, self._num_ranks)
        except PeerFailed as failed:
            self._under_way.say(f"{contestant.name} on {self._num_ranks} ranks {failed}")
            ranks.end(hard=True)
        else:
            self._ranks.append(ranks)

    def measured(self, planned: Sequence[PeerCase], rounds: int) -> list[Row]:
        """Side by side: in each round, for each size, everybody in turn."""
        rows = {case: Row(self._num_ranks, case.what) for case in planned}
        for number in range(rounds):
            for case in planned:
                self._under_way.begin(f"{self._num_ranks} ranks, round {number + 1} of {rounds}: {case.what}")
                for ranks, side in list(self._turns(number)):
                    if ranks in self._ranks:
                        self._take(ranks, side, case, rows[case])
        return list(rows.values())

    def _turns(self, number: int) -> Iterator[tuple[Ranks, str]]:
        turns = [(ranks, side) for ranks in self._ranks for side in ranks.contestant.sides]
        at = number % len(turns)
        yield from turns[at:] + turns[:at]

    def _take(self, ranks: Ranks, side: str, case: PeerCase, row: Row) -> None:
        buffers = num_buffers(case, self._num_ranks, last_cache_bytes())
        try:
            if (side, case) not in self._amounts:
                self._amounts[side, case] = amount(ranks.slice(side, case, buffers, FIRST))
            row.rounds.setdefault(side, []).append(ranks.slice(side, case, buffers, self._amounts[side, case]))
        except PeerFailed as failed:
            self._under_way.say(
                f"{ranks.contestant.name} on {self._num_ranks} ranks {failed}; it takes no further part"
            )
            self._ranks.remove(ranks)
            ranks.end(hard=True)
