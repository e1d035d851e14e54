"""With one lane and no randomness, the bits are those of the plain PyTorch loop."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adam fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "adagrad foreach": lambda p: torch.optim.Adagrad(p, lr=1e-2, foreach=True),
}


def model_of(kind):
    torch.manual_seed(0)
    if kind == "mlp":
        return scenarios.mlp()
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))


def both(kind, optimizer_name, clip):
    run = samebits.init(seed=0, lanes=1)
    loader = DataLoader(scenarios.digits(70), batch_size=32)
    plain, prepared = model_of(kind), model_of(kind)
    plain_optimizer = OPTIMIZERS[optimizer_name](plain.parameters())
    optimizer = OPTIMIZERS[optimizer_name](prepared.parameters())
    for _ in range(2):
        for images, labels in loader:
            F.cross_entropy(plain(images), labels).backward()
            if clip:
                nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            plain_optimizer.step()
            plain_optimizer.zero_grad()
    prepared, optimizer, lanes = run.prepare(prepared, optimizer, loader)
    for _ in run.epochs(2):
        for step in run.steps(lanes):
            for images, labels in step:
                run.backward(F.cross_entropy(prepared(images), labels))
            if clip:
                nn.utils.clip_grad_norm_(prepared.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return digest_of(plain), digest_of(prepared)


@promise(
    "same-bits",
    "With one lane and no randomness, the bits are those of the plain PyTorch loop (the sign of a zero in "
    "a gradient may differ); SGD, Adagrad and SparseAdam with `sparse=True` and `16-mixed` included",
    also=[
        "test_rows_over_ranks.py::test_one_lane_has_the_bits_of_the_plain_loop",
        "test_one_lane_under_16_mixed_has_the_bits_of_torchs_own_scaler",
    ],
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
def test_one_lane_has_the_bits_of_the_plain_loop(kind, optimizer, clip):
    [(plain, prepared)] = run_ranks(both, Started(1, lanes=1), kind, optimizer, clip)
    assert plain == prepared


def clipped_norms():
    run = samebits.init(seed=0, lanes=4)
    model = scenarios.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(scenarios.digits(64), batch_size=32))
    norms = []
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        ours = float(run.clip_grad_norm_(model.parameters(), 1e9))
        torchs = nn.utils.clip_grad_norm_(model.parameters(), 0.1).item()
        norms.append((ours, torchs, nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()))
        optimizer.step()
        optimizer.zero_grad()
    return norms


@promise(
    "same-bits",
    "`torch.nn.utils.clip_grad_norm_` on the parameters sees the single-device norm; "
    "`run.clip_grad_norm_` has the same bits everywhere",
)
def test_torchs_own_clip_sees_the_single_device_norm():
    [alone] = run_ranks(clipped_norms, Started(1))
    for ours, torchs, after in alone:
        assert ours == pytest.approx(torchs, rel=1e-6)
        assert after == pytest.approx(0.1, rel=1e-4)
    for result in run_ranks(clipped_norms, Started(2)):
        assert result == alone
