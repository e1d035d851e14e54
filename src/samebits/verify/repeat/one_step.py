"""A proof of one step by its operators: `--where 37` with a file, which holds them.

The bits before the step are compared first: where they differ already, the first operator of this step is not the cause.
"""

from __future__ import annotations

from dataclasses import replace

from samebits.verify.repeat.operators import first_parting, read_operators
from samebits.verify.repeat.recorded import Made
from samebits.verify.repeat.repeat import NothingToCompareError, Proof, fill_runs, made_of
from samebits.verify.repeat.result import Repeated
from samebits.verify.repeat.saved_operators import SavedOperators, bits_before
from samebits.verify.repeat.started import Command, Runs
from samebits.verify.saved_bits import fact_differences, facts_apart, write_saved


def compare_step(proof: Proof, runs: Runs) -> Repeated:
    """Make the runs up to the step, compare its operators with each other or the file, and write them if that is wanted."""
    command, step = proof.sides[0].command, proof.steps
    result = Repeated(command.title, step, command.num_processes, recorded_step=step)
    wanted = {"steps": step, "operators_of": step}
    made: list[tuple[Made, SavedOperators]] = []
    try:
        for side in proof.sides:
            label = f"{side.label}, each operator of step {step}"
            one = made_of(runs, side, proof, wanted, label=label)
            made.append((replace(one, label=side.label), _recorded(one, command, step)))
    except NothingToCompareError as end:
        result.failed, result.why = end.label, end.why
        return result
    fill_runs(result, [one for one, _ in made])
    first, operators = made[0]
    result.compared = len(operators.operators)
    if proof.against is not None and isinstance(proof.against[1], SavedOperators):
        path, saved = proof.against[0], proof.against[1]
        result.against = str(path)
        _compare(result, saved, operators, (path.name, first.label))
        result.facts = tuple(fact_differences(saved, command.args, first.facts)) if result.is_apart else ()
    for other, theirs in made[1:]:
        if not result.is_apart:
            _compare(result, operators, theirs, (first.label, other.label))
            names = f"in {first.label}", f"in {other.label}"
            result.facts = tuple(facts_apart(first.facts, other.facts, names)) if result.is_apart else ()
    if proof.save is not None and not result.is_apart:
        write_saved(proof.save, operators.encode())
        result.saved_to = str(proof.save)
    return result


def _recorded(made: Made, command: Command, step: int) -> SavedOperators:
    operators = read_operators(made.ended.folder / "operators-00000.jsonl")
    if made.steps < step or not operators:
        why = f"The script ended after step {made.steps}" if made.steps < step else "Nothing was computed in it"
        raise NothingToCompareError(made.label, f"{why}, so there are no operators of step {step}.")
    before = bits_before(made.evidence, step)
    return SavedOperators(command.name, command.args, dict(made.facts), step, before, operators)


def _compare(result: Repeated, ours: SavedOperators, theirs: SavedOperators, sides: tuple[str, str]) -> None:
    parting = first_parting(ours.operators, theirs.operators, ours.steps)
    result.parting = replace(parting, sides=sides) if parting is not None else None
    result.is_before = ours.before != theirs.before
