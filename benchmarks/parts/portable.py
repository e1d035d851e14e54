"""What numerics="portable" costs: steps of one rank under `exact` and under `portable`, in processes that take turns.

samebits run -n 1 --numerics portable -m benchmarks.parts.portable --workload mlp --rounds 20 --to times.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from benchmarks.parts.sides import adamw, rank_parser
from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, compare
from benchmarks.workloads import WORKLOADS, Workload

TURNS = 4
"""How often each of the two is started; torch can't be told another arithmetic once it is loaded."""
WARM_UP = 4


class Recurrent(nn.Module):
    """Two LSTM layers of 256, and a head on the last step: 0.9 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(128, 256, num_layers=2, batch_first=True), nn.Linear(256, 10)

    def forward(self, texts: Tensor) -> Tensor:
        return self.head(self.lstm(texts)[0][:, -1])


def _sequences(num_samples: int) -> TensorDataset:
    return TensorDataset(torch.randn(num_samples, 50, 128), torch.randint(10, (num_samples,)))


ALL = {**WORKLOADS, "lstm": Workload("lstm", "LSTM 2 x 256, 32 x 50 steps", 32, Recurrent, _sequences)}
MOST = {"mlp": 1.0, "gpt": 1.0, "cnn": 1.3, "conv": 1.3, "lstm": 2.0, "tensors": 1.1}
"""The most that a step may take, in shares of one under `exact`."""


def measure_cost(workload: str, rounds: int) -> list[Line]:
    """One workload on one rank with one lane."""
    arguments: list[object] = ["--workload", workload, "--rounds", max(rounds // TURNS, 3)]
    times: dict[str, list[int]] = {"exact": [], "portable": []}
    for _ in range(TURNS):
        for numerics, found in times.items():
            found.extend(measure_in_ranks("portable", 1, arguments, ["--numerics", numerics]))
    aim = Aim("P1", f"portable: {ALL[workload].what}", 1 / MOST[workload])
    return [compare(aim, ("portable", times["portable"]), ("exact", times["exact"]), ("exact", times["exact"]))]


def steps(workload: Workload, rounds: int) -> list[int]:
    """Nanoseconds of each step."""
    run = samebits.init(seed=0)
    model = workload.model()
    loader = DataLoader(workload.data(workload.batch * (rounds + WARM_UP)), batch_size=workload.batch)
    model, optimizer, loader = run.prepare(model, adamw(model), loader)
    times = []
    loss_of: Callable[[tuple[Tensor, Tensor]], Tensor] = lambda batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    began = time.perf_counter_ns()
    for step in run.steps(loader):
        step.backward(loss_of)
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter_ns()
        times.append(now - began)
        began = now
    return times[WARM_UP:]


def main() -> None:
    parser = rank_parser()
    parser.add_argument("--workload", choices=ALL, required=True)
    options = parser.parse_args()
    options.to.write_text(json.dumps(steps(ALL[options.workload], options.rounds)))


if __name__ == "__main__":
    main()
