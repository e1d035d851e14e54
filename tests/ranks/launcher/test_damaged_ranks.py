"""A run in whose memory a bit flips starts all ranks again, and ends with the bits of one in whose memory none did."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.launching import Finished, run_script

pytestmark = pytest.mark.ranks

TRAINING = '''
import os, signal, sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.rank.transport.shared_memory import SharedMemoryTransport

events = [word.split(":") for word in sys.argv[1:]]


def is_time(what, step):
    """Whether `what` happens on this rank in this step; once in the whole run."""
    for kind, rank, number in events:
        mark = Path(f"did-{kind}-{rank}-{number}")
        if (kind, int(rank), int(number)) == (what, run.rank, step) and not mark.exists():
            mark.touch()
            return True
    return False


run = samebits.init(seed=1, lanes=6, threads=1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(240, 8), torch.randint(0, 3, (240,)))
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=12, shuffle=True))
at, gather = 0, SharedMemoryTransport.all_gather_bytes


def all_gather_bytes(transport, told):
    if is_time("kill", at):
        os.kill(os.getpid(), signal.SIGKILL)
    return gather(transport, told)


SharedMemoryTransport.all_gather_bytes = all_gather_bytes


def flip(*_):
    if is_time("flip", at):
        model[3].weight.detach().view(torch.uint8).view(-1).numpy()[23] ^= 128
    if is_time("moment", at):
        optimizer.state[model[0].weight]["exp_avg"].view(torch.uint8).view(-1).numpy()[22] ^= 16
    if is_time("mistake", at):
        Path(f"did-mistake-{run.rank}-{at}").unlink()
        model[0].bias.data.add_(1)


optimizer.register_step_pre_hook(flip)
for epoch in run.epochs(2):
    for step in run.steps(loader):
        at = step.number
        for inputs, labels in step:
            run.backward(F.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
'''
NAMED = ("--name", "exp1", "--save-every", "6steps")


def train(place: Path, ranks: int, events: str = "", *options: str) -> Finished:
    options = ("-n", str(ranks), "--check-every", "4steps", *options)
    return run_script(place, TRAINING, *options, args=tuple(events.split()))


def bits(ended: Finished) -> str:
    return ended.bits


def said(ended: Finished) -> list[str]:
    return [*ended.losses, *(line for line in ended.err.splitlines() if line.startswith(("stop ", "FAILED ")))]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bits(train(tmp_path_factory.mktemp("straight"), 1))


@pytest.mark.thorough
def test_a_flipped_bit_after_kills_sends_all_ranks_back_to_a_state_that_is_sure(
    tmp_path: Path, undisturbed: str
) -> None:
    ended = train(tmp_path, 3, "kill:1:14 kill:0:16 flip:2:18", *NAMED)
    assert bits(ended) == undisturbed
    first, second, back = said(ended)
    assert first.startswith("LOST rank 1 was killed by signal 9 (SIGKILL) in step 14 (13 done, ")
    assert second.startswith("LOST rank 0 was killed by signal 9 (SIGKILL) in step 16 (15 done, ")
    # the state after step 18 was refused: it is compared before it is written
    assert re.fullmatch(
        r"LOST rank 2 no longer holds the same bits as the other ranks in 'Sequential.3.weight' after step 18 "
        r"\(after step 15 it did\) back all ranks start again \(restart 3 of 3\), after step 1[56], kept in memory "
        r"[23] steps are computed again; lines below may repeat",
        back,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("event", ["flip:0:9", "flip:1:40", "moment:1:21"])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("options", [(), NAMED], ids=["unnamed", "named"])
def test_damage_leaves_no_trace(
    tmp_path: Path, undisturbed: str, event: str, ranks: int, options: tuple[str, ...]
) -> None:
    ended = train(tmp_path, ranks, event, *options)
    [line] = said(ended)
    assert "the same bits " in line
    assert bits(ended) == undisturbed


@pytest.mark.thorough
def test_a_page_that_one_rank_wrote_is_refused_before_the_update_of_zero1(tmp_path: Path) -> None:
    ended = train(tmp_path, 2, "flip:0:9", "--strategy", "zero1")
    assert ended.code == 2
    assert ": The parameters differ between ranks: " in ended.err


@pytest.mark.thorough
def test_on_damage_stop_ends_with_the_sentence_and_exit_code_1(tmp_path: Path) -> None:
    ended = train(tmp_path, 3, "flip:1:9", "--on-damage", "stop")
    assert ended.code == 1
    [line] = said(ended)
    assert line == (
        "FAILED    rank 1 no longer holds the same bits as the other ranks in 'Sequential.3.weight' in step 12 (11 done, "
        "after step 7 it did)"
    )


@pytest.mark.thorough
def test_damage_that_the_script_does_itself_comes_back_and_stops_the_run(tmp_path: Path) -> None:
    ended = train(tmp_path, 3, "mistake:1:9", *NAMED)
    assert ended.code == 2
    restart, stop, failed = said(ended)
    assert "in 'Sequential.0.bias' in step 12 (11 done" in restart
    assert "in step 12 (11 done) again; the same failure at the same step would come back" in stop
    assert failed.startswith("FAILED    rank 1 no longer holds")
