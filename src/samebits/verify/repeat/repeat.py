"""The order of a proof by repetition: the sides, their comparison, what helps, and the operator where they part.

This file only carries out; the other files decide what the evidence means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samebits.verify.evidence import Kind
from samebits.verify.repeat.causes import SEEDS, Cause, Conditions, advice, names, next_cause, seeds_of
from samebits.verify.repeat.operators import Parting, Why, first_parting, read_operators, with_values
from samebits.verify.repeat.recorded import Made, read_made
from samebits.verify.repeat.result import Apart, Repeated, Run, Tried, compare, how_far
from samebits.verify.repeat.saved_operators import Saved
from samebits.verify.repeat.started import Command, Runs
from samebits.verify.saved_bits import SavedBits, fact_differences, facts_apart, write_saved


@dataclass(frozen=True)
class Side:
    """One way to run the script."""

    label: str
    command: Command
    folder: Path | None = None
    """Its working directory; None: the user's."""
    moved: tuple[str, str] | None = None
    """The top of the user's tree, and of the one that is imported from instead."""

    def wanted(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """What is to be recorded, for the witness."""
        return {**wanted, **({"moved": self.moved} if self.moved is not None else {})}


@dataclass(frozen=True)
class Proof:
    """What is compared.

    Args:
        sides: with which runs; the first one is what the others are compared with.
        steps: after how many a run is ended.
        limit_s: after how many seconds.
        are_equal: whether the sides are one script in one environment, so that causes can be tried.
        where: whether the operator is wanted.
        save: where to write the bits, if all sides have the same.
        against: a file of bits or operators, which the sides must have too.
    """

    sides: tuple[Side, ...]
    steps: int
    limit_s: float
    are_equal: bool = True
    where: bool = False
    save: Path | None = None
    against: tuple[Path, Saved] | None = None

    @property
    def wanted(self) -> dict[str, Any]:
        """What each run records."""
        return {"steps": self.steps, "norms": self.save is not None or self.against is not None}


class NothingToCompareError(Exception):
    """Ends a proof: which run, and why."""

    def __init__(self, label: str, why: str) -> None:
        super().__init__(why)
        self.label, self.why = label, why


def repeat(proof: Proof, runs: Runs) -> Repeated:
    """Make the runs and compare them."""
    first = proof.sides[0].command
    result = Repeated(first.title, proof.steps, first.num_processes)
    try:
        made = [made_of(runs, side, proof, proof.wanted) for side in proof.sides]
    except NothingToCompareError as end:
        result.failed, result.why = end.label, end.why
        return result
    fill_runs(result, made)
    result.compared = len({place.item for place in made[0].evidence.ranks[0]})
    _compare(proof, result, made)
    if result.apart is not None and proof.against is None:
        if proof.where:
            _find_operator(proof, runs, result, result.apart)
        if proof.are_equal:
            _try_causes(proof, runs, result, made)
    if proof.save is not None and result.apart is None:
        write_saved(proof.save, _to_save(first, made[0]).encode())
        result.saved_to = str(proof.save)
    return result


def fill_runs(result: Repeated, made: Sequence[Made]) -> None:
    """Note which runs were made, and how far all came."""
    result.runs = [Run(one.label, one.steps, one.seconds, one.spent, one.is_cut, one.is_normal) for one in made]
    result.steps = min(one.steps for one in made)


def made_of(
    runs: Runs,
    side: Side,
    proof: Proof,
    wanted: Mapping[str, Any],
    *,
    label: str = "",
    variables: Mapping[str, str] | None = None,
) -> Made:
    """Make a run of a side; raise `NothingToCompareError` where it recorded nothing."""
    ended = runs.run(label or side.label, side.command, side.wanted(wanted), variables, side.folder)
    made = read_made(ended, proof.limit_s)
    if isinstance(made, str):
        raise NothingToCompareError(ended.label, made)
    return made


def _compare(proof: Proof, result: Repeated, made: list[Made]) -> None:
    first = made[0]
    for other in made[1:]:
        found = compare((first.label, first.evidence), (other.label, other.evidence))
        if found is not None and (result.apart is None or found.place.step < result.apart.place.step):
            result.apart = found
            result.facts = tuple(facts_apart(first.facts, other.facts, (f"in {first.label}", f"in {other.label}")))
    if result.apart is None and proof.against is not None and isinstance(proof.against[1], SavedBits):
        path, saved = proof.against[0], proof.against[1]
        result.against, result.steps = str(path), min(saved.steps, first.steps)
        here = replace(first.evidence, ranks=first.evidence.ranks[:1])
        result.apart = compare((path.name, saved.evidence), (first.label, here))
        result.facts = tuple(fact_differences(saved, proof.sides[0].command.args, first.facts))


def _find_operator(proof: Proof, runs: Runs, result: Repeated, apart: Apart) -> None:
    """Run both sides again, and write down every operator of the step."""
    step = 1 if apart.place.kind is Kind.INITIAL else apart.place.step
    pair = [next(side for side in proof.sides if side.label == label) for label in (apart.left, apart.right)]
    record = _operators_of(proof, runs, pair, (step, apart.rank))
    if isinstance(record, str):
        result.parting_why = record
        return
    parting, _ = record
    if parting is None:
        result.parting_why = f"In two more runs every operator of step {step} had the same results."
        return
    if parting.why is Why.OPERATOR:
        again = _operators_of(proof, runs, pair, (step, apart.rank), values_of=parting.number)
        if not isinstance(again, str) and again[0] is not None and again[0].number == parting.number:
            parting = with_values(parting, *again[1])
    result.parting = replace(parting, sides=(apart.left, apart.right))


def _operators_of(
    proof: Proof, runs: Runs, pair: list[Side], at: tuple[int, int], *, values_of: int | None = None
) -> tuple[Parting | None, tuple[Path, Path]] | str:
    """Where the two part, and the files with values; a sentence where one of them failed."""
    step, rank = at
    wanted = {"steps": step, "operators_of": step, **({"values_of": values_of} if values_of is not None else {})}
    folders: list[Path] = []
    for side in pair:
        what = "the values" if values_of is not None else "each operator"
        label = f"{side.label}, {what} of step {step}"
        ended = runs.run(label, side.command, side.wanted(wanted), None, side.folder)
        made = read_made(ended, proof.limit_s)
        if isinstance(made, str):
            return f"The run that records operators failed: {made}"
        folders.append(ended.folder)
    ours, theirs = (read_operators(folder / f"operators-{rank:05d}.jsonl") for folder in folders)
    if not ours and not theirs:
        return f"No operator of step {step} was recorded."
    values = [folder / f"values-{rank:05d}.json" for folder in folders]
    return first_parting(ours, theirs, step), (values[0], values[1])


def _try_causes(proof: Proof, runs: Runs, result: Repeated, made: list[Made]) -> None:
    """Run the script twice more with each likely cause taken away, until one helps; what helps a part of the way is kept."""
    assert result.apart is not None
    apart, kept, tried = result.apart, (), []  # type: Apart, tuple[Cause, ...], list[Cause]
    facts = made[0].facts
    conditions = Conditions(
        "device" in facts,
        any(one.has_workers for one in made),
        int(facts.get("threads", 2)),
        seeds_of(made[0].drawn, made[-1].drawn),
    )
    while (cause := next_cause(apart.place, tried, conditions)) is not None:
        tried.append(cause)
        causes = (*kept, cause)
        try:
            both = [_made_without(proof, runs, causes, number) for number in (1, 2)]
        except NothingToCompareError:
            result.tried.append(Tried(names(causes), advice(causes), None))
            continue
        later = compare(*((one.label, one.evidence) for one in both))
        # A seed gives other numbers than before: two runs that have the old ones were the same by chance.
        is_idle = later is None and cause.name in SEEDS and any(_are_same(both[0], one) for one in made)
        is_later = later is not None and how_far(later, both[0].evidence) > how_far(apart, made[0].evidence)
        until = str(later.place) if later is not None and is_later else ""
        result.tried.append(Tried(names(causes), advice(causes), later is None and not is_idle, until, is_idle))
        if later is None and not is_idle:
            return
        if later is not None and is_later:
            apart, kept, made = later, causes, both
            # The seeds of few generators were some of what is missing: the others are tried with those of every generator.
            tried += [one for one in conditions.seeds if one not in tried]


def _made_without(proof: Proof, runs: Runs, causes: tuple[Cause, ...], number: int) -> Made:
    fixes = [fix for cause in causes for fix in cause.fixes]
    variables = {name: value for cause in causes for name, value in cause.variables.items()}
    wanted = {**proof.wanted, **({"fixes": fixes} if fixes else {})}
    label = f"with {names(causes)}, run {number}"
    return made_of(runs, proof.sides[0], proof, wanted, label=label, variables=variables)


def _are_same(one: Made, other: Made) -> bool:
    return compare((one.label, one.evidence), (other.label, other.evidence)) is None


def _to_save(command: Command, made: Made) -> SavedBits:
    evidence = replace(made.evidence, ranks=made.evidence.ranks[:1])
    return SavedBits(command.name, command.args, dict(made.facts), made.steps, evidence)
