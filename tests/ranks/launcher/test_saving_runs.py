"""`samebits run --name exp1 --save-every ...`: the same command goes on where the run was, whatever ended it."""

import hashlib
import os
import signal
from pathlib import Path

import pytest

from tests.support.launching import run_script, start, stretched, until, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
    import os, signal, sys, time, torch, torch.nn.functional as F
    from pathlib import Path
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    run = samebits.init(seed=1, lanes=6, threads=1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(100, 8), torch.randint(0, 3, (100,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=24, shuffle=True))
    steps = []
    for epoch in run.epochs(3):
        for step in run.steps(loader):
            for inputs, labels in step:
                run.backward(F.cross_entropy(model(inputs), labels))
            if step.number == int(os.environ.get("DIES_AT", 0)) and run.rank == run.world_size - 1:
                # A process beside the run writes states; the newest one is there before the rank dies.
                newest = Path(f"samebits-runs/exp1/states/step-{(step.number - 1) // 2 * 2:08d}/manifest.json")
                until = time.monotonic() + 30
                while not newest.exists() and time.monotonic() < until:
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            while os.environ.get("WAITS") and step.number == 3:
                time.sleep(0.1)
            optimizer.step()
            optimizer.zero_grad()
            steps.append(step.number)
    run.save_weights(model, sys.argv[1])
    run.print("steps", steps[0] if steps else None, "to", steps[-1] if steps else None)
"""


def begin(folder: Path, ranks: int, *options: str, **variables: str):
    script = write_script(folder, SCRIPT)
    env = {name: str(value) for name, value in variables.items()}
    return start(folder, "-n", str(ranks), *options, script, "weights.safetensors", env=env)


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("straight")
    assert begin(folder, 1).finish().code == 0
    return digest(folder)


EVERY = ("--name", "exp1", "--save-every", "2steps", "--keep", "2")


@promise(
    "save-and-resume",
    "A run that changes its strategy where it resumes, goes to one rank from stages, is killed at random, "
    "or starts again by the same command has the bits of one that never stopped",
    also=[
        "test_it_goes_on_under_another_strategy",
        "test_a_run_goes_on_where_each_rank_holds_other_layers_and_back",
        "test_a_run_that_is_killed_and_changes_its_ranks_ends_with_the_same_bits",
    ],
)
def test_a_killed_run_goes_on_with_the_same_command_and_another_number_of_ranks(
    tmp_path: Path, undisturbed: str
) -> None:
    killed = begin(tmp_path, 2, *EVERY, "--max-restarts", "0", DIES_AT="8").finish()
    assert (killed.code, "restart" in killed.err) == (137, False)
    assert begin(tmp_path, 3, *EVERY, "--recover", "off", DIES_AT="12").finish().code == 137
    ended = begin(tmp_path, 1, *EVERY).finish()
    assert ended.code == 0, ended.err
    assert "the run resumes after 2 epochs, step 10" in ended.err
    assert "steps 11 to 15" in ended.out
    assert digest(tmp_path) == undisturbed
    place = tmp_path / "samebits-runs" / "exp1"
    assert sorted(path.name for path in (place / "states").iterdir()) == ["step-00000012", "step-00000014"]
    assert len([path for path in place.iterdir() if (path / "plan.json").exists()]) == 3
    again = begin(tmp_path, 2, *EVERY).finish()
    assert (again.code, "steps 15 to 15" in again.out) == (0, True)
    assert "ended well before, after step 15: step 15, after its newest state, is computed again" in again.err
    assert "ended well before" not in ended.err
    assert digest(tmp_path) == undisturbed


@pytest.mark.thorough
def test_a_second_start_of_a_run_that_goes_on_is_refused(tmp_path: Path) -> None:
    first = begin(tmp_path, 1, *EVERY, WAITS="1")
    saved = tmp_path / "samebits-runs" / "exp1" / "states" / "step-00000002" / "manifest.json"
    until(saved.exists, "the first state", stretched(60.0))
    second = begin(tmp_path, 1, *EVERY).finish()
    assert second.code == 2
    assert second.err.startswith("error: The run exp1 is already running.\nhelp: Wait for it")
    first.process.send_signal(signal.SIGTERM)
    assert first.finish().code == 143
    assert begin(tmp_path, 2, *EVERY).finish().code == 0


def test_a_killed_nursery_says_that_the_same_command_goes_on(tmp_path: Path) -> None:
    run = begin(tmp_path, 2, *EVERY, WAITS=1)
    until((tmp_path / "samebits-runs" / "exp1" / "states" / "step-00000002").exists, "a state")
    nursery = next(pid for pid in run.processes() if b"rank.start.nursery" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(nursery, signal.SIGKILL)
    ended = run.finish()
    assert ended.code == 1
    assert ended.err.rstrip().endswith(
        "was killed from outside, and the ranks with it. The last state is of step 2: the same command resumes from there."
    )
    assert begin(tmp_path, 1, *EVERY).finish().code == 0


BEHIND = """
import sys, torch, samebits
run = samebits.init(seed=0, lanes=2, threads=1)
m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), lr=.1)
m, o, l = run.prepare(m, o, torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8))

def train(epoch=-1):
    for step in run.steps(l):
        for x in step: loss = m(x).pow(2).mean(); run.backward(loss)
        o.step(); o.zero_grad()
    return step.loss, step.number, step.index, step.num_samples, epoch

def train_epochs():
    for epoch in run.epochs(2):
        told = train(epoch)
        best = run.mean(told[0])
    return best, epoch

def of_a_lane():
    for step in run.steps(l):
        for x in step: loss = m(x).pow(2).mean(); run.backward(loss)
        o.step(); o.zero_grad()
    return loss.item()

run.print(globals()[sys.argv[1]]())
"""


@promise("never-stuck-nothing-left-behind", "No run resumes where names that a loop assigns are read and missing")
@pytest.mark.parametrize("loop", ["train", "train_epochs", pytest.param("of_a_lane", marks=pytest.mark.thorough)])
def test_a_run_that_has_ended_finds_what_its_script_reads_behind_its_loops(tmp_path: Path, loop: str) -> None:
    options = ("-n", "2", "--name", "ends", "--save-every", "1step")
    first, again = (run_script(tmp_path, BEHIND, *options, args=(loop,)) for _ in range(2))
    assert first.code == 0, first.err
    if loop == "train_epochs":
        assert "which no state has" in again.err, again.err
        assert again.code == 2
    else:
        # No state was saved behind the last step, which is computed once more.
        assert (again.code, again.out) == (0, first.out), again.err
