"""A script keeps the iterator of a step that it left: nothing of that pass reaches a later one."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts.scenarios import digits, mlp

pytestmark = pytest.mark.ranks


def prepared(**options):
    run = samebits.init(seed=0, lanes=4, threads=1, precision="bf16-mixed", **options)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return run, *run.prepare(model, optimizer, DataLoader(digits(), batch_size=25))


def train(keeps):
    """Step 2 of the first epoch makes no update; `keeps`: its iterator goes in the middle of step 3."""
    run, model, optimizer, loader = prepared()
    kept, inside = [], []
    for epoch in run.epochs(2):
        for number, step in enumerate(run.steps(loader)):
            if (epoch, number) == (0, 1):
                if keeps:
                    kept.append(iter(step))
                    next(kept[0])
                continue
            inside.append(torch.is_autocast_enabled("cpu"))
            for images, labels in step:
                kept.clear()
                run.backward(F.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
            if (epoch, number) == (0, 4) and keeps:
                kept.append(None)
    return digest_of(model, optimizer), any(inside)


def test_a_kept_iterator_changes_no_later_step():
    [(plain, _)] = run_ranks(train, Started(1), False)
    for ranks in (1, 2):
        assert run_ranks(train, Started(ranks), True) == [(plain, False)] * ranks


def kept_over_the_loop():
    run, model, optimizer, loader = prepared()
    for step in run.steps(loader):
        kept = iter(step)
        next(kept)
        break
    outside = torch.is_autocast_enabled("cpu")
    for step in run.steps(loader):
        for images, labels in step:
            kept = None
            run.backward(F.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()
    return outside, kept, digest_of(model)


def test_a_kept_iterator_does_not_outlive_the_loop_over_steps():
    [first] = run_ranks(kept_over_the_loop, Started(1))
    assert first[:2] == (False, None)
    assert run_ranks(kept_over_the_loop, Started(2)) == [first] * 2


def gone_on():
    run, _, _, loader = prepared()
    for number, step in enumerate(run.steps(loader)):
        if number == 0:
            kept = iter(step)
            next(kept)
        else:
            next(kept)


def test_going_on_with_a_step_that_is_over_is_one_sentence():
    with pytest.raises(RankFailed, match="This step is over: its lanes cannot continue"):
        run_ranks(gone_on, Started(1))
