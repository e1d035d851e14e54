"""A rank that is killed in the middle of a step, until that step is done (C11, D3): noticed, all ranks started again, computed.

The script's own start, as it took the first time, is taken off: a loss costs it again, whatever we do.

samebits run -n 2 -m benchmarks.parts.lost --model small --to lost.json
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import samebits
from benchmarks.parts.sides import adamw, rank_parser
from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, compare
from benchmarks.workloads import WORKS

STEPS = {"small": (40, 20), "gpt-124m": (8, 5)}
"""How many, and in which the rank dies."""
RANKS = 2
GOALS_NS = {"small": ("C11", 0.3e9), "gpt-124m": ("D3", 3.0e9)}


def measure_loss(model: str, rounds: int) -> list[Line]:
    """One run in each round, of which a rank dies once."""
    told = [measure_in_ranks("lost", RANKS, ("--model", model)) for _ in range(rounds)]
    row, goal_ns = GOALS_NS[model]
    beyond = [one["whole"] - one["own_start"] for one in told]
    line = compare(
        Aim(row, f"one of {RANKS} ranks is killed, {model}: beyond the script's own start", goal_ns),
        ("all again", beyond),
    )
    middle = {name: sorted(one[name] for one in told)[len(told) // 2] for name in told[0]}
    return [line.with_notes({"parts": middle})]


class Clock:
    """Instants that outlive the ranks: files beside the result, written by one rank each. All in nanoseconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, name: str) -> None:
        """Keep the first instant of this name."""
        file = self._folder / f"{name}.ns"
        if not file.exists():
            file.write_text(str(time.monotonic_ns()))

    def __contains__(self, name: str) -> bool:
        return (self._folder / f"{name}.ns").exists()

    def between(self, first: str, second: str) -> int:
        """From one to the other."""
        told = [int((self._folder / f"{name}.ns").read_text()) for name in (first, second)]
        return told[1] - told[0]


def main() -> None:
    parser = rank_parser()
    parser.add_argument("--model", choices=STEPS, required=True)
    options = parser.parse_args()
    clock = Clock(options.to.parent)
    start = "again" if "death" in clock else "first"
    is_main, is_last = os.environ["RANK"] == "0", int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if is_main:
        clock.note(f"{start}-begun")

    run = samebits.init(seed=0)
    model, data, batch = WORKS[options.model]()
    number, at = STEPS[options.model]
    samples = torch.utils.data.Subset(data, [each % len(data) for each in range(number * batch * run.world_size)])
    loader = DataLoader(samples, batch_size=batch * run.world_size)
    model, optimizer, loader = run.prepare(model, adamw(model), loader)
    if is_main:
        clock.note(f"{start}-prepared")
    for step in run.steps(loader):
        if is_main and step.number == at - 1:
            clock.note("step-before")
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
            if step.number == at and is_last and "death" not in clock:
                clock.note("death")
                os.kill(os.getpid(), signal.SIGKILL)
            if is_main and start == "again":
                clock.note("again-first-step")
            run.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if is_main and step.number == at - 1:
            clock.note("step-before-done")
        if is_main and step.number == at:
            clock.note("step-done")
    if is_main:
        told = {
            "whole": clock.between("death", "step-done"),
            "until_the_script_begins": clock.between("death", "again-begun"),
            "until_it_has_prepared": clock.between("again-begun", "again-prepared"),
            "own_start": clock.between("first-begun", "first-prepared"),
            "step": clock.between("step-before", "step-before-done"),
        }
        options.to.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
