"""The note's comparison, repeated: a naive split, one device, a pipeline, and the sweep over its micro-batches.

    python -m benchmarks.notes.figure --plot docs/pictures/notes_figure.png

The note quotes the PyTorch tutorial on model parallelism (ResNet-50 on two GPUs: the naive split 7 % slower than one
GPU, the pipeline about 50 % faster). Here a rank with one thread takes the place of a GPU. A round runs every
configuration once, in turn. Beside them is the limit of this machine: the same steps in plain PyTorch in one process,
and in two at once that exchange nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks.notes.picture import draw_figure
from lockstep.bench.bench import Runners, measure_round
from lockstep.bench.measures import Spread, spread
from lockstep.bench.plan import Amount, Bench, Configuration, with_all_threads
from lockstep.bench.report import show
from lockstep.bench.results import Measured, Results
from lockstep.bench.stages import ideal_speed_up
from lockstep.launch.nursery.handle import NurseryHandle
from lockstep.machine.cores import usable_cores
from lockstep.trials.trials import PRELOADED, Program, Trials

STAGES = 2
GOALS = {8: 1.65, 16: 1.78}
"""Micro-batches: how much faster than the naive split a pipeline of two stages must be."""


LEAST_LIMIT = "leave out rounds in which two processes at once compute less than X times as much as one"


@dataclass(frozen=True)
class Ratio:
    """One comparison within the rounds."""

    what: str
    here: Spread
    ideal: float | None
    said: str
    """What the note or the goal says."""


def planned(micro_batches: Sequence[int], cores: int) -> list[Configuration]:
    """The note's bars first, then the sweep, each with the naive split and the single rank that it is compared with."""
    found = [
        Configuration("single", 1, 1, 1),
        Configuration("model_parallel", STAGES, 1, 1, label="naive split"),
        *(Configuration("pipeline", STAGES, count, 1, label="pipeline") for count in micro_batches),
        *(Configuration("model_parallel", STAGES, count, 1, label="naive split") for count in GOALS),
        *(Configuration("single", 1, count, 1) for count in micro_batches),
    ]
    return [*found, Configuration("single", 1, 1, cores, all_cores=True)] if cores > 1 else found


def ratios(results: Results, limit: Sequence[float]) -> Iterator[Ratio]:
    """What the note says, what is possible, and what was measured."""
    single, naive = _find(results, "single", 1), _find(results, "naive split", 1)
    pipelines = [one for one in results.whole() if one.title == "pipeline"]
    if limit:
        yield Ratio("limit: two processes at once / one", spread(limit), 2.0, "two GPUs: 2.00")
    if single is None or naive is None or not pipelines:
        return
    yield Ratio("naive split / single", _over(naive, single), 1.0, "0.93")
    best = max(pipelines, key=lambda one: _over(one, single).median)
    yield Ratio(f"pipeline of {best.lanes} / single", _over(best, single), None, "1.49 to 1.54")
    for one in pipelines:
        alone = _find(results, "single", one.lanes)
        if alone is not None:
            ideal = ideal_speed_up(STAGES, one.lanes)
            yield Ratio(f"pipeline of {one.lanes} / single of {one.lanes}", _over(one, alone), ideal, "")
    for one in pipelines:
        ideal = ideal_speed_up(STAGES, one.lanes)
        goal = f"goal {GOALS[one.lanes]}" if one.lanes in GOALS else ""
        same = _find(results, "naive split", one.lanes)
        if same is not None:
            yield Ratio(f"pipeline of {one.lanes} / naive split of {one.lanes}", _over(one, same), ideal, goal)
        yield Ratio(f"pipeline of {one.lanes} / naive split", _over(one, naive), None, goal)


def _find(results: Results, title: str, lanes: int) -> Measured | None:
    return next((one for one in results.whole() if (one.title, one.lanes) == (title, lanes)), None)


def _over(one: Measured, other: Measured) -> Spread:
    pairs = zip(one.rounds, other.rounds, strict=False)
    return spread([mine.samples_per_s / theirs.samples_per_s for mine, theirs in pairs])


def two_at_once(program: Program, nursery: NurseryHandle) -> float:
    """How much more two processes that exchange nothing compute than one, on this machine now."""
    one, two = (_plain_step(program, nursery, ranks) for ranks in (1, 2))
    return 2 * one / two


def keep_rounds(results: Results, limit: Sequence[float], least: float) -> list[float]:
    """Leave out the rounds in which this machine did not have two cores for us; the limits of the others."""
    kept = [number for number, value in enumerate(limit) if value >= least]
    for one in results.measured:
        one.rounds = [one.rounds[number] for number in kept if number < len(one.rounds)]
    return [limit[number] for number in kept]


def _plain_step(program: Program, nursery: NurseryHandle, ranks: int) -> float:
    """Nanoseconds of a plain step while every rank computes; the slowest rank's median."""
    with tempfile.TemporaryDirectory() as folder:
        alone = replace(program, args=(*program.args, "--alone", folder))
        with Trials(alone, lambda *_: None, nursery, purpose="bench") as trials:
            try:
                outcome = trials.run("alone", ranks, None, {}).outcome
            finally:
                trials.remove()
        if outcome.exit_code:
            raise SystemExit(outcome.block)
        edges = [json.loads(file.read_text()) for file in Path(folder).iterdir()]
    end = min(each[-1] for each in edges)  # later steps of the others run alone
    steps = [[b - a for a, b in pairwise(each[1:]) if b <= end] for each in edges]
    if not all(steps):
        raise SystemExit("the two processes did not compute at the same time; the machine is too busy to measure")
    return max(median(each) for each in steps)


def say_ratios(found: Sequence[Ratio], console: Console) -> None:
    """A line for each ratio."""
    console.print(Text(f"{'':36}{'here':>6}  {'quartiles':<11}{'ideal':>6}  note or goal"))
    for ratio in found:
        ideal = f"{ratio.ideal:.2f}" if ratio.ideal is not None else ""
        wide = f"{ratio.here.low:.2f}-{ratio.here.high:.2f}"
        console.print(Text(f"{ratio.what:36}{ratio.here.median:>6.2f}  {wide:<11}{ideal:>6}  {ratio.said}".rstrip()))


def measure_all(options: argparse.Namespace) -> tuple[Results, list[Ratio]]:
    """Everything, with a line on standard error for each round."""
    cores = usable_cores().count
    amount = Amount(options.steps, options.rounds, warm_up=1)
    program = Program(None, "benchmarks.notes.network", (), 1, "cpu")
    bench = Bench(program, ("single",), (1, STAGES), 1, amount, cores)
    results = Results("benchmarks.notes.network", "cpu", cores, amount)
    with ExitStack() as stack:
        nursery = stack.enter_context(NurseryHandle(1, PRELOADED))
        usual = stack.enter_context(Trials(program, lambda *_: None, nursery, purpose="bench"))
        wide = stack.enter_context(Trials(with_all_threads(program, cores), lambda *_: None, purpose="bench"))
        for trials in (usual, wide):
            stack.callback(trials.remove)
        runners = Runners(usual, wide)
        results.measured = [Measured(each) for each in planned(options.micro_batches, cores)]
        limit: list[float] = []
        try:
            for number in range(options.rounds):
                before = two_at_once(program, nursery)
                seconds = measure_round(number, bench, runners, results)
                limit.append((before + two_at_once(program, nursery)) / 2)
                said = f"round {number + 1} of {options.rounds}: {seconds:.0f} s; two at once {limit[-1]:.2f} times one"
                print(said, file=sys.stderr)
        except (KeyboardInterrupt, SystemExit) as stop:
            print(f"stopped after {len(limit)} rounds: {stop}", file=sys.stderr)
            results.interrupted_by = 130
    limit = keep_rounds(results, limit, options.least_limit)
    if not limit:
        raise SystemExit(f"In no round did two processes at once compute {options.least_limit} times as much as one.")
    return results, list(ratios(results, limit))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.notes.figure", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3, help="measured steps of each run")
    parser.add_argument("--micro-batches", type=_numbers, default=(2, 4, 8, 16), metavar="N,N,...")
    parser.add_argument("--least-limit", type=float, default=0.0, metavar="X", help=LEAST_LIMIT)
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    parser.add_argument("--plot", type=Path, help="draw the figure")
    options = parser.parse_args()
    results, found = measure_all(options)
    console = Console(highlight=False)
    show(results, console)
    console.print()
    say_ratios(found, console)
    if options.json is not None:
        facts: dict[str, Any] = {**results.as_json(), "ratios": [asdict(ratio) for ratio in found]}
        options.json.write_text(json.dumps(facts, allow_nan=False))
    if options.plot is not None:
        draw_figure(results, options.plot)
    sys.exit(results.exit_code)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


if __name__ == "__main__":
    main()
