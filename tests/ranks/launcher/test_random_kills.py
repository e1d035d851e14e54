"""Ranks are killed at random instants, many times; the run ends with the bits of one that nobody disturbed.

`make test-thorough` makes a thousand kills.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from samebits.protocol.journal.ring import JournalReader
from tests.support.launching import LIMIT_S, Finished, Running, run_script, start, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

TRAIN = """
    import sys, time, torch, torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    run = samebits.init(seed=3, lanes=8, threads=1)
    x, y = torch.randn(320, 32), torch.randint(0, 10, (320,))
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    model, optimizer, train, test = run.prepare(model, optimizer, train, DataLoader(TensorDataset(x, y), batch_size=40))
    for epoch in run.epochs(12):
        tally = run.tally()
        for step in run.steps(train):
            for images, labels in step:
                loss = F.cross_entropy(model(images), labels)
                run.backward(loss)
                tally.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=step.loss)
            time.sleep(float(sys.argv[1]))
        model.eval()
        right = run.tally()
        with torch.no_grad():
            for images, labels in test:
                right.add(accuracy=(model(images).argmax(1) == labels).float().mean())
        model.train()
        run.log(accuracy=right.mean()["accuracy"], train=tally.mean()["loss"])
"""


@dataclass
class Storm:
    """Kills in one run."""

    running: Running
    ranks: int
    chance: random.Random
    pause_s: float

    def rage(self, most: int) -> int:
        """Kill ranks at random instants until there were `most` kills or the run is over; return how many there were.

        Nobody is killed before the first step, nor twice at one step: that would be a failure that comes again.
        """
        killed: set[tuple[int, int]] = set()
        until = time.monotonic() + LIMIT_S
        while self.running.process.poll() is None and len(killed) < most and time.monotonic() < until:
            time.sleep(self.chance.uniform(0.2, 1.8) * self.pause_s)
            rank = self.chance.randrange(self.ranks)
            journals = list(self.running.place.glob(f"samebits-runs/**/journal/rank-{rank:05d}.ring"))
            newest = [path for path in journals if "before-restart" not in str(path)]
            if not newest:
                continue
            journal = JournalReader(newest[0])
            last = journal.last()
            if last is None or not last.step or (rank, last.step) in killed:
                continue
            try:
                os.kill(journal.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.add((rank, last.step))
        return len(killed)


def result(finished: Finished, place: Path) -> tuple[str, list[dict[str, float]]]:
    """The bits, and what was logged."""
    assert finished.code == 0, finished.err
    newest = max(place.glob("samebits-runs/**/metrics.jsonl"), key=os.path.getmtime)
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    return finished.bits, [{**line, "time": 0.0} for line in lines]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, float]]]:
    place = tmp_path_factory.mktemp("straight")
    return result(run_script(place, TRAIN, "-n", "2", args=("0",)), place)


def disturbed(place: Path, ranks: int, seed: int, kills: int, *options: str) -> tuple[Finished, int]:
    script = write_script(place, TRAIN)
    running = start(place, "-n", str(ranks), "--max-restarts", "1000", *options, script, "0.02")
    made = Storm(running, ranks, random.Random(seed), 0.3).rage(kills)
    return running.finish(), made


def test_kills_at_random_instants_change_nothing(tmp_path: Path, undisturbed: object) -> None:
    finished, made = disturbed(tmp_path, 3, 1, 8)
    assert result(finished, tmp_path) == undisturbed
    assert made >= 4
    assert "kept in memory" in finished.err


@promise(
    "never-stuck-nothing-left-behind",
    "A thousand kills at random instants on 2, 3, 4 and 8 ranks change nothing (`make test-thorough`)",
    also=["test_strategies_that_start_again_from_their_newest_state_end_with_the_same_bits"],
)
@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_thousand_kills_change_nothing(tmp_path: Path, undisturbed: object, ranks: int, seed: int) -> None:
    finished, made = disturbed(tmp_path, ranks, seed, 25)
    assert result(finished, tmp_path) == undisturbed
    assert made >= 20


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["zero1", "model_parallel"])
def test_strategies_that_start_again_from_their_newest_state_end_with_the_same_bits(
    tmp_path: Path, undisturbed: tuple[str, list[dict[str, float]]], strategy: str
) -> None:
    saving = ("--strategy", strategy, "--name", "exp1", "--save-every", "5steps")
    finished, made = disturbed(tmp_path, 2, 1, 4, *saving)
    assert made >= 2
    assert result(finished, tmp_path) == undisturbed
