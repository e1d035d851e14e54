"""`run.steps(loader, epochs=)` is the loop over epochs and steps in one: the same bits, resumes and messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import Finished, run_script

pytestmark = pytest.mark.ranks

SCRIPT = """
    import os, signal, sys, torch, torch.nn.functional as F, samebits
    from torch.utils.data import DataLoader, TensorDataset

    run = samebits.init(seed=0, lanes=4, threads=1)
    data = TensorDataset(torch.randn(36, 8, generator=torch.Generator().manual_seed(1)), torch.arange(36) % 3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=12, shuffle=True))
    form, dies, leaves = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

    def train(step):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        if dies == step.number and run.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()

    if form == "short":
        steps = run.steps(loader, epochs=3)
        assert len(steps) == 9
        del steps
        for step in run.steps(loader, epochs=3):
            train(step)
            if step.number == leaves:
                break
    elif form == "inside":
        for epoch in run.epochs(3):
            for step in run.steps(loader, epochs=2):
                train(step)
    else:
        for epoch in run.epochs(3):
            for step in run.steps(loader):
                train(step)
"""


def train(place: Path, form: str, dies: int = 0, leaves: int = 0) -> Finished:
    return run_script(place, SCRIPT, "-n", "2", args=(form, str(dies), str(leaves)))


def bits(ended: Finished) -> str:
    return ended.bits


def test_the_short_loop_has_the_bits_of_the_long_one_through_a_kill(tmp_path: Path) -> None:
    long, short = train(tmp_path, "long"), train(tmp_path, "short", dies=5)
    assert bits(short) == bits(long)
    assert "3 epochs, 9 steps" in short.err
    assert "restart 1 of" in short.err
    assert "computed again" not in short.err or "1 step is computed again" in short.err


def test_the_short_loop_can_be_left_and_stands_in_no_other(tmp_path: Path) -> None:
    left = train(tmp_path, "short", leaves=4)
    assert left.code == 0, left.err
    assert "4 steps" in left.err
    inside = train(tmp_path, "inside")
    assert inside.code == 2
    assert "Leave epochs= out there." in inside.err
