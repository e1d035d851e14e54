"""A loader worker that dies costs its rank's step, on one rank too; the run ends with the same bits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.launching import Finished, run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
import ctypes, os, signal, sys, torch, torch.nn.functional as F
from pathlib import Path
from torch.utils.data import DataLoader, Dataset
import samebits
HOW, OPTIONS = sys.argv[1], eval(sys.argv[2])

class Numbers(Dataset):
    def __init__(self, name, dies_at):
        self.name, self.dies_at = name, dies_at
    def __len__(self): return 100
    def __getitem__(self, i):
        mark = Path(f"dead-{self.name}-{i}")
        if HOW and i in self.dies_at and (HOW == "always" or not mark.exists()):
            mark.touch()
            if HOW == "SIGSEGV": ctypes.string_at(0)
            if HOW == "_exit": os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.rand(8) * i / 100, i % 3

def main():
    run = samebits.init(seed=1, lanes=6, threads=1)
    m = torch.nn.Linear(8, 3); o = torch.optim.AdamW(m.parameters(), lr=0.01)
    options = {"batch_size": 24, "num_workers": 2, **OPTIONS}
    m, o, l, held_out = run.prepare(
        m, o, DataLoader(Numbers("train", (3, 70)), shuffle=True, **options), DataLoader(Numbers("eval", (50,)), **options)
    )
    for e in run.epochs(2):
        for s in run.steps(l):
            for x, y in s: run.backward(F.cross_entropy(m(x), y))
            o.step(); o.zero_grad()
        tally = run.tally()
        for x, y in held_out: tally.add(loss=F.cross_entropy(m(x), y))
        loss = float(tally.mean()["loss"]).hex()
        if run.is_main: print(loss)

if __name__ == "__main__":
    main()
"""


def train(place: Path, how: str, ranks: int, options: str = "{}") -> Finished:
    place.mkdir(exist_ok=True)
    return run_script(place, SCRIPT, "-n", str(ranks), args=(how, options))


def ends(finished: Finished) -> tuple[str, str]:
    return finished.bits, finished.out


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return ends(train(tmp_path_factory.mktemp("straight"), "", 1))


@promise(
    "never-stuck-nothing-left-behind",
    "A loader worker that is killed, crashes or exits costs its rank's step, and its sample is named; the "
    "second one that dies at a sample ends the run",
    also=[
        "test_a_worker_that_dies_fails_its_rank_with_the_sample",
        "test_a_sample_that_kills_each_worker_ends_the_run_with_its_number",
    ],
)
@pytest.mark.parametrize(
    ("how", "ranks", "options"),
    [
        ("SIGKILL", 2, "{}"),
        *(
            pytest.param(how, ranks, options, marks=pytest.mark.thorough)
            for how, ranks, options in [
                ("SIGKILL", 1, "{}"),
                ("SIGSEGV", 1, "{}"),
                ("SIGSEGV", 2, "{'persistent_workers': True}"),
                ("_exit", 1, "{'persistent_workers': True}"),
                ("_exit", 2, "{'multiprocessing_context': 'forkserver'}"),
                ("SIGKILL", 2, "{'multiprocessing_context': 'spawn', 'persistent_workers': True}"),
            ]
        ),
    ],
)
def test_workers_that_die_cost_a_step_and_change_nothing(
    tmp_path: Path, undisturbed: tuple[str, str], how: str, ranks: int, options: str
) -> None:
    finished = train(tmp_path, how, ranks, options)
    bits, printed = ends(finished)
    assert bits == undisturbed[0]
    assert set(printed.splitlines()) == set(undisturbed[1].splitlines())
    assert len(list(tmp_path.glob("dead-*"))) == 3
    lines = finished.losses
    assert 2 <= len(lines) <= 3, "two may die together"
    told = "\n".join(lines)
    assert re.search(r"lost a loader worker at sample (3|70) of the data set \(epoch 1, step \d\)", told), told
    assert "lost a loader worker at sample 50 of the data set (evaluation, batch 3)" in told
    assert all(", kept in memory" in line or "from the beginning" in line for line in lines)
    assert ", kept in memory" in lines[-1], told


@pytest.mark.thorough
def test_a_sample_that_kills_each_worker_ends_the_run_with_its_number(tmp_path: Path) -> None:
    finished = train(tmp_path, "always", 2)
    assert finished.code == 1
    block = finished.err[finished.err.index("FAILED ") :]
    assert re.search(r"sample (3|70) of the data set \(epoch 1, step \d\)", block)
    assert "the same failure at the same step would come back" in finished.err


HALF_SENT = """
    import os, signal, sys, torch

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 5:
                open(f"/dev/shm/torch_{os.getpid()}_7_0", "w").close()  # what a worker makes when it sends a tensor
                print("worker", os.getpid(), file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            return torch.zeros(3)

    samples = iter(torch.utils.data.DataLoader(Rows(), num_workers=1))
    if "unheard" in sys.argv:  # torch then looks for its workers every five seconds, and cannot say what ended one
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for _ in samples:
        pass
"""


@pytest.mark.every_row
@pytest.mark.parametrize("args", [(), ("unheard",)])
def test_a_worker_that_is_killed_while_it_sends_leaves_no_shared_memory(tmp_path: Path, args: tuple[str, ...]) -> None:
    """Its own rank has reaped it, so nobody else knows its number."""
    finished = run_script(tmp_path, HALF_SENT, "-n", "1", args=args)
    assert finished.code == 1
    worker = re.search(r"worker (\d+)", finished.log(0))
    assert worker is not None
    assert not [*Path("/dev/shm").glob(f"torch_{worker[1]}_*")]
