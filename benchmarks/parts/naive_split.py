"""A pipeline of two stages against the naive split of the same network with the same micro-batches, on two ranks."""

from __future__ import annotations

from benchmarks.summary import Aim, Line, compare
from lockstep.bench.bench import Runners, measure_rounds
from lockstep.bench.plan import Amount, Bench, Configuration
from lockstep.bench.results import Results
from lockstep.bench.stages import ideal_speed_up
from lockstep.machine.cores import usable_cores
from lockstep.trials.trials import Program, Trials

STAGES = 2
GOALS = {8: 1.65, 16: 1.78}


def measure_pipeline(micro_batches: int, rounds: int) -> list[Line]:
    """One number of micro-batches. The limit is the naive split without the idle time that a pipeline can avoid.

    Exits when a side fails, or their bits differ.
    """
    amount = Amount(steps=3, rounds=rounds, warm_up=1)
    program = Program(None, "benchmarks.notes.network", (), 1, "cpu")
    bench = Bench(program, ("single",), (1, STAGES), micro_batches, amount, usable_cores().count)
    results = Results(program.title, "cpu", bench.cores, amount)
    sides = [Configuration(name, STAGES, micro_batches, 1) for name in ("pipeline", "model_parallel")]
    with Trials(program, lambda *_: None, purpose="bench") as trials:
        try:
            measure_rounds(sides, bench, Runners(trials, None), results)
        finally:
            trials.remove()
    pipeline, naive = results.measured
    if pipeline.failed or naive.failed or pipeline.bits != naive.bits:
        raise SystemExit(pipeline.failed or naive.failed or "the pipeline's bits are not those of the naive split")
    ours, theirs = ([round(each.step_s * 1e9) for each in side.rounds] for side in (pipeline, naive))
    least = [round(time / ideal_speed_up(STAGES, micro_batches)) for time in theirs]
    what = f"ResNet-50 of width 16, 2 stages, {micro_batches} micro-batches"
    aim = Aim("C12", what, GOALS[micro_batches])
    return [compare(aim, ("pipeline", ours), ("naive split", theirs), ("bubble only", least))]
