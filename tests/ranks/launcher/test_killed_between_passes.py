"""A rank is killed in the backwards behind a look at all lanes, which has moved statistics already: the bits stay."""

import pytest

from tests.support.launching import run_script

pytestmark = pytest.mark.ranks

SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import samebits
how, kills = sys.argv[1], [kill.split(":") for kill in sys.argv[2:]]
run = samebits.init(seed=1, lanes=4, threads=1)
m = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(96, 8), torch.randint(0, 3, (96,))
m, o, l = run.prepare(m, o, DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True))
def here(place, number):
    for rank, where, when in kills:
        mark = Path(f"killed-{rank}-{where}-{when}")
        if (int(rank), where, int(when)) == (run.rank, place, number) and not mark.exists():
            mark.touch(); os.kill(os.getpid(), signal.SIGKILL)
def losses(batch, number):
    out = m(batch[0])
    out.register_hook(lambda gradient: here("backward", number))
    here("forward", number)
    return F.cross_entropy(out, batch[1], reduction="sum"), out.square().sum(), (out > 0).sum()
for e in run.epochs(3):
    for step in run.steps(l):
        if how == "counts":
            for batch in step:
                entropy, squares, number = losses(batch, step.number)
                run.backward((entropy, squares), counts=(len(batch[0]), number))
        else:
            step.backward(lambda batch: losses(batch, step.number)[0].view(1), over_batch=lambda found: found.sum() / 16)
        here("behind", step.number)
        o.step(); o.zero_grad()
"""


@pytest.mark.parametrize("how", [pytest.param("counts", marks=pytest.mark.thorough), "over_batch"])
@pytest.mark.thorough
def test_a_kill_behind_the_look_leaves_the_bits(tmp_path, how):
    (tmp_path / "straight").mkdir()
    straight = run_script(tmp_path / "straight", SCRIPT, "-n", "1", args=(how,))
    kills = "1:forward:5", "0:backward:9", "1:behind:12"
    killed = run_script(tmp_path, SCRIPT, "-n", "2", args=(how, *kills))
    assert killed.code == straight.code == 0, killed.err
    assert len([*tmp_path.glob("killed-*")]) == len(kills)
    assert killed.bits == straight.bits
