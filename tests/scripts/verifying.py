"""A tiny training script with slots for mistakes, and what verifies it with real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.trials.trials import PRELOADED, Program, Trials
from samebits.verify.result import Result
from samebits.verify.saved_bits import read_saved
from samebits.verify.verify import Proof, verify

SCRIPT = """
import copy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
import samebits

run = samebits.init(seed=0, lanes={lanes})
inputs = torch.randn(44, 6)
targets = inputs[:, :3].argmax(1)
{before_loader}
model = nn.Sequential(nn.Linear(6, 8), {norm}, nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr={lr})
loader = DataLoader({dataset}, batch_size=22, {order})
test_loader = DataLoader(TensorDataset(inputs[:5], targets[:5]), batch_size=3)
model, optimizer, loader, test_loader = run.prepare(model, optimizer, loader, test_loader)
{before}
for epoch in run.epochs({epochs}):
    for step in run.steps(loader):
        for x, y in step:
            {lane}
            run.backward({loss})
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
        {after}
    {epoch_end}
{end}
"""
HONEST = {
    "lanes": 2,
    "before_loader": "",
    "norm": "nn.BatchNorm1d(8)",
    "lr": "1e-2",
    "order": "shuffle=True",
    "before": "",
    "epochs": 2,
    "lane": "run.log(mean=float(x.mean()))",
    "loss": "F.cross_entropy(model(x), y)",
    "after": "pass",
    "epoch_end": "pass",
    "dataset": "TensorDataset(inputs, targets)",
    "end": "",
}
TOKENS = """
def mean_of_tokens(logits, tokens):
    keep = tokens != 0
    return F.cross_entropy(logits[keep], tokens[keep])
lengths = torch.arange(1, 45) % 7 + 1
"""
"""A batch of padded sentences: the mean runs over tokens without padding, of which lanes have different numbers."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[NurseryHandle]:
    with NurseryHandle(1, ("samebits.testing.short_end", *PRELOADED)) as nursery:
        yield nursery


class Verifier:
    def __init__(self, folder: Path, nursery: NurseryHandle) -> None:
        self.folder, self.nursery = folder, nursery

    def __call__(
        self,
        *,
        ranks: tuple[int, ...] = (1, 2),
        steps: int = 3,
        save: Path | None = None,
        against: Path | None = None,
        where: bool = False,
        **slots: object,
    ) -> Result:
        script = self.folder / "train.py"
        script.write_text(SCRIPT.format(**HONEST | slots))
        return self.of(script, ranks, steps, save=save, against=against, where=where)

    def of(
        self,
        script: Path,
        ranks: tuple[int, ...] = (1, 2),
        steps: int = 3,
        *,
        save: Path | None = None,
        against: Path | None = None,
        accepted: tuple[str, ...] = (),
        where: bool = False,
    ) -> Result:
        program = Program(script, None, (), threads=1, device="cpu")
        file = (against, read_saved(against)) if against is not None else None
        with Trials(program, lambda *_: None, self.nursery) as trials:
            try:
                return verify(Proof(program, ranks, None, steps, accepted, save, file, where=where), trials)
            finally:
                trials.remove()


@pytest.fixture
def verified(tmp_path: Path, nursery: NurseryHandle) -> Verifier:
    return Verifier(tmp_path, nursery)


def named(result: Result) -> tuple[str, int, str]:
    """Item, step and usual cause of the first difference."""
    assert result.failed is None, result.failed
    assert result.exit_code == 1
    assert result.difference is not None
    place = result.difference.difference.place
    return place.item, place.step, result.difference.cause
