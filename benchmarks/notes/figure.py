"""The note's comparison, repeated: a naive split, one device, a pipeline, and the sweep over its micro-batches.

    python -m benchmarks.notes.figure --plot docs/pictures/notes_figure.png

The note quotes the PyTorch tutorial on model parallelism (ResNet-50 on two GPUs: the naive split 7 % slower than one
GPU, the pipeline about 50 % faster). Here a rank with one thread takes the place of a GPU. A round runs every
configuration once, in turn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.parts.pipeline import GOALS, PROGRAM, STAGES
from samebits.bench.bench import Runners, measure_round
from samebits.bench.measures import ideal_speed_up
from samebits.bench.picture import draw_bars, draw_steps
from samebits.bench.plan import Amount, Bench, Configuration, with_all_threads
from samebits.bench.report import show
from samebits.bench.results import Measured, Results
from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.trials.trials import PRELOADED, Trials
from samebits.machine.cores import usable_cores

DRAWN = 8
"""Micro-batches of the pipeline whose step is drawn."""


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


def measure_all(micro_batches: Sequence[int], rounds: int, steps: int) -> Results:
    """Everything, with a line on standard error for each round."""
    cores = usable_cores().count
    amount = Amount(steps, rounds, warm_up=1)
    bench = Bench(PROGRAM, ("single",), (1, STAGES), 1, amount, cores)
    results = Results(PROGRAM.title, "cpu", cores, amount)
    with ExitStack() as stack:
        nursery = stack.enter_context(NurseryHandle(1, PRELOADED))
        usual = stack.enter_context(Trials(PROGRAM, lambda *_: None, nursery, purpose="bench"))
        wide = stack.enter_context(Trials(with_all_threads(PROGRAM, cores), lambda *_: None, purpose="bench"))
        for trials in (usual, wide):
            stack.callback(trials.remove)
        results.measured = [Measured(each) for each in planned(micro_batches, cores)]
        try:
            for number in range(rounds):
                seconds = measure_round(number, bench, Runners(usual, wide), results)
                print(f"round {number + 1} of {rounds}: {seconds:.0f} s", file=sys.stderr)
        except KeyboardInterrupt:
            results.interrupted_by = 130
    return results


def draw_figure(results: Results, path: Path) -> None:
    """Write the figure; the format is that of the file's name."""
    whole = list(results.whole())
    single, naive = _of(whole, "single"), _of(whole, "naive split")
    pipelines, all_cores = _of(whole, "pipeline"), _of(whole, "1 rank, all cores")
    best = sorted(pipelines, key=lambda one: one.speed.median)[-1:]
    figure = Figure(figsize=(10.5, 7.2), dpi=140, layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(3.2, 2.6))
    bars = [*naive[:1], *single[:1], *best, *all_cores]
    draw_bars(figure.add_subplot(grid[0, 0]), results, bars)
    _draw_sweep(figure.add_subplot(grid[0, 1]), single, naive, pipelines)
    drawn = [one for one in pipelines if one.lanes == DRAWN] or best
    draw_steps(figure.add_subplot(grid[1, :]), [*single[:1], *naive[:1], *drawn])
    figure.savefig(path)


def _of(whole: list[Measured], title: str) -> list[Measured]:
    return sorted((one for one in whole if one.title == title), key=lambda one: one.lanes)


def _draw_sweep(axes: Any, single: list[Measured], naive: list[Measured], pipelines: list[Measured]) -> None:
    """Samples per second over the number of micro-batches, as in the tutorial's second figure."""
    for name, colour, found in (
        ("pipeline, 2 ranks", "#3b75af", pipelines),
        ("naive split, 2 ranks", "#c44e52", naive),
        ("single", "#666666", single),
    ):
        speeds = [one.speed for one in found]
        errors = [[one.median - one.low for one in speeds], [one.high - one.median for one in speeds]]
        lanes = [one.lanes for one in found]
        axes.errorbar(
            lanes, [one.median for one in speeds], yerr=errors, color=colour, marker="o", capsize=3, label=name
        )
    if naive and pipelines:
        lanes = [one.lanes for one in pipelines]
        ideal = [naive[0].speed.median * ideal_speed_up(2, count) for count in lanes]
        axes.plot(lanes, ideal, color="#3b75af", linestyle=":", label="naive split x 2 / (1 + 1/m)")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({one.lanes for one in (*single, *naive, *pipelines)}))
    axes.get_xaxis().set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("micro-batches (lanes)", fontsize=8)
    axes.set_ylabel("samples/s")
    axes.legend(fontsize=7, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.notes.figure", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3, help="measured steps of each run")
    parser.add_argument("--micro-batches", type=_numbers, default=(2, 4, 8, 16), metavar="N,N,...")
    parser.add_argument("--plot", type=Path, help="draw the figure")
    options = parser.parse_args()
    results = measure_all(options.micro_batches, options.rounds, options.steps)
    show(results, Console(highlight=False))
    if options.plot is not None:
        draw_figure(results, options.plot)
    sys.exit(results.exit_code)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


if __name__ == "__main__":
    main()
