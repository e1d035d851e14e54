"""What `samebits bench` measures: configurations, each a strategy on a number of ranks with lanes and threads. Pure.

Every configuration has the same threads per rank, apart from `all cores`: one process with all threads, which is what a
person has without several ranks. Lanes are the script's; a script that names none gets as many as the most ranks, and a
pipeline its own default, because a lane is a micro-batch there. For each number of lanes there is a `single`, whose bits
the others must have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from samebits.errors import UsageError
from samebits.launcher.trials.trials import Program
from samebits.protocol.layout.mesh import STAGED, Form, Mesh, choose_mesh, launched

WITHOUT_LANES = ("dp",)
"""Strategies that cut the batch themselves: without named lanes there is one."""


@dataclass(frozen=True)
class Configuration:
    """One way to run the script."""

    strategy: str
    ranks: int
    """Under `dp`, replicas of its one rank."""
    lanes: int | None
    """None: the script's."""
    threads: int
    """Per rank."""
    all_cores: bool = False
    """Whether this is one process with a thread for each core."""
    label: str = ""
    """A name of its own, where strategy and ranks do not say enough."""

    @property
    def title(self) -> str:
        """Its name in the table, without its lanes."""
        if self.label:
            return self.label
        if self.all_cores:
            return "1 rank, all cores"
        return self.strategy if self.ranks == 1 else f"{self.strategy} on {self.ranks}"

    @property
    def key(self) -> str:
        """A name that no other configuration of the bench has."""
        return f"{self.title}, {self.lanes or 'own'} lanes"

    @property
    def form(self) -> Form:
        """What the ranks are asked to do."""
        return Form(strategy=self.strategy)


@dataclass(frozen=True)
class Amount:
    """How much is measured."""

    steps: int
    """In each run, after the warm-up."""
    rounds: int
    """Runs of each configuration, in turn with the others."""
    warm_up: int = 3
    """Steps of each run that are made but not measured."""

    @property
    def steps_needed(self) -> int:
        """Steps that the script must make."""
        return self.warm_up + self.steps


@dataclass(frozen=True)
class Bench:
    """What to measure, as far as it is known before the script has run."""

    program: Program
    strategies: tuple[str, ...]
    ranks: tuple[int, ...]
    lanes: int | None
    """None: the script's, or decided by `configurations`."""
    amount: Amount
    cores: int

    def __post_init__(self) -> None:
        wide = [name for name in self.strategies if name not in ("single", "ddp")]
        if wide and max(self.ranks) == 1:
            raise UsageError(f"{wide[0]} needs several ranks, but --ranks is 1.", "Bench with --ranks 2.")
        if self.lanes is not None:
            self._check_lanes(self.lanes)

    def _check_lanes(self, lanes: int) -> None:
        for strategy in self.strategies:
            for ranks in self.ranks if strategy != "single" else ():
                mesh = _mesh(strategy, ranks)
                if lanes < mesh.replicas:
                    raise UsageError(
                        f"Each rank needs a lane, but --lanes {lanes} is less than {ranks} ranks.",
                        f"Bench with --lanes {ranks}, or with fewer --ranks.",
                    )
                mesh.check_lanes(lanes)


def _mesh(strategy: str, count: int) -> Mesh:
    ranks, form = launched(Form(strategy=strategy), count)
    return choose_mesh(form, ranks)


def configurations(bench: Bench, script_lanes: int | None, threads: int) -> list[Configuration]:
    """Everything to measure, the reference first: `single` with the lanes that most configurations have.

    Args:
        bench: what was asked for.
        script_lanes: the lanes that the script names; None when it names none.
        threads: per rank, as the ranks have them.

    Invariant: no two are equal; each number of lanes but that of `all cores` has a `single`. There is no `all cores`
    where it would be the same as the first.
    """
    named = bench.lanes or script_lanes
    usual = named or max(bench.ranks)
    wide = [
        Configuration(strategy, ranks, named or _lanes(strategy, ranks, usual), threads)
        for strategy in bench.strategies
        for ranks in bench.ranks
        if strategy != "single" and ranks > 1
    ]
    lanes = [usual, *(one.lanes for one in wide if one.lanes != usual)]
    single = [Configuration("single", 1, count, threads) for count in dict.fromkeys(lanes)]
    found = [single[0], *wide, *single[1:]]
    if bench.program.device == "cpu" and (threads, usual) != (bench.cores, named or 1):
        found.append(Configuration("single", 1, named or 1, bench.cores, all_cores=True))
    return list(dict.fromkeys(found))


def _lanes(strategy: str, ranks: int, usual: int) -> int:
    if strategy in WITHOUT_LANES:
        return 1
    return max(_mesh(strategy, ranks).default_lanes(), usual) if strategy in STAGED else usual


def with_all_threads(program: Program, cores: int) -> Program:
    """The program as one process that uses every core."""
    return replace(program, threads=cores, threads_given=True)


def parse_strategies(names: Sequence[str]) -> tuple[str, ...]:
    """Names without repetition, `single` among them, because everything is compared with it."""
    return tuple(dict.fromkeys(["single", *names]))
