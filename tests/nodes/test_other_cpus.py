"""Two nodes with different CPUs, one of them emulated, train one model under numerics="portable"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.hosts import network, why_not
from tests.support.launching import write_script
from tests.support.portable import emulated, needs_emulator, needs_portable

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.thorough,
    needs_portable,
    needs_emulator,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
TRAIN = """
    import torch, torch.nn.functional as F, samebits
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    run = samebits.init(seed=3, lanes=4, numerics="portable")
    model = nn.Sequential(nn.Linear(200, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(160, 200), torch.randint(0, 3, (160,))), batch_size=16, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    run.print("loss", float(step.loss).hex())
"""


@pytest.mark.parametrize("cpu", ["Haswell", "EPYC-Rome"])
def test_two_nodes_with_different_cpus_have_the_bits_of_one(tmp_path: Path, cpu: str) -> None:
    losses = []
    with network(2) as hosts:
        key = tmp_path / "key"
        key.write_text("a secret of thirty-two characters and more\n")
        key.chmod(0o600)
        runs = []
        for number, host in enumerate(hosts):
            place = tmp_path / f"node-{number}"
            place.mkdir()
            where = ("--nnodes", "2", "--node-rank", str(number), "--rdzv-endpoint", f"{hosts[0].address}:29511")
            other = {"SAMEBITS_PYTHON": str(emulated(place, cpu))} if number else {}
            options = (*where, "--key-file", str(key), "-n", "1", "--start-method=spawn", write_script(place, TRAIN))
            runs.append(host.launch(place, *options, env=other, is_cold=True))
        for run in runs:
            ended = run.finish()
            assert ended.code == 0, ended.err
            assert "processors" not in ended.err, "nobody warns of different CPUs"
            losses += re.findall(r"loss (\S+)", ended.out)
        alone = tmp_path / "alone"
        alone.mkdir()
        ended = hosts[0].launch(alone, "-n", "1", write_script(alone, TRAIN), is_cold=True).finish()
        losses += re.findall(r"loss (\S+)", ended.out)
    assert len(losses) == 2, losses
    assert len({*losses}) == 1, "on both nodes together, and on one rank"
