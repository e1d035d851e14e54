"""A pipeline of two stages against the naive split of the same network with the same micro-batches, on two ranks (C12).

The network is that of the PyTorch tutorial that the note quotes, a ResNet-50 with bottleneck blocks, of a CPU's size: width 16
instead of 64, pictures of 64 x 64 instead of 128 x 128, a batch of 128 instead of 120: 1.5 million parameters, about 0.4 s a step.

    samebits bench --strategies model_parallel,pipeline -m benchmarks.parts.pipeline
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from benchmarks.gpu_day.programs.models import Bottleneck
from benchmarks.summary import Aim, Line, compare
from samebits.bench.bench import Runners, measure_rounds
from samebits.bench.measures import ideal_speed_up
from samebits.bench.plan import Amount, Bench, Configuration
from samebits.bench.results import Results
from samebits.launcher.trials.trials import Program, Trials
from samebits.machine.cores import usable_cores

STAGES = 2
GOALS = {8: 1.65, 16: 1.78}
"""Micro-batches: how much faster than the naive split a pipeline of two stages must be."""
PROGRAM = Program(None, "benchmarks.parts.pipeline", (), 1, "cpu")
BLOCKS, NUM_CLASSES, BATCH = (3, 4, 6, 3), 100, 128


def measure_pipeline(micro_batches: int, rounds: int) -> list[Line]:
    """One number of micro-batches. The limit is the naive split without the idle time that a pipeline can avoid.

    Exits when a side fails, or their bits differ.
    """
    amount = Amount(steps=3, rounds=rounds, warm_up=1)
    bench = Bench(PROGRAM, ("single",), (1, STAGES), micro_batches, amount, usable_cores().count)
    results = Results(PROGRAM.title, "cpu", bench.cores, amount)
    sides = [Configuration(name, STAGES, micro_batches, 1) for name in ("pipeline", "model_parallel")]
    with Trials(PROGRAM, lambda *_: None, purpose="bench") as trials:
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


def resnet50(width: int = 16) -> nn.Sequential:
    """(batch, 3, 64, 64) pictures to scores of 100 classes; the tutorial's network has width 64."""
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage, count in enumerate(BLOCKS):
        for number in range(count):
            layers.append(Bottleneck(inputs, width << stage, 2 if stage and not number else 1))
            inputs = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, NUM_CLASSES))


def data(num_samples: int) -> TensorDataset:
    """Random pictures and classes; the same ones on every rank."""
    numbers = torch.Generator().manual_seed(0)
    pictures = torch.randn(num_samples, 3, 64, 64, generator=numbers)
    return TensorDataset(pictures, torch.randint(NUM_CLASSES, (num_samples,), generator=numbers))


def main() -> None:
    """The loop that is measured; the same for every strategy."""
    run = samebits.init(seed=0)
    model = resnet50()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(data(4 * BATCH), batch_size=BATCH)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for _ in run.epochs(1000):
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
