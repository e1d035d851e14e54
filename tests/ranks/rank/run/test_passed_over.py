"""`--skip-steps`: the samples of some steps are passed over, and every other step is what it would have been."""

import json

import pytest

from tests.support.launching import run_script, said, start, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
import samebits

class Numbers(Dataset):
    def __len__(self):
        return 70
    def __getitem__(self, index):
        if index in map(int, sys.argv[2].split()):
            raise ValueError("this one cannot be read")
        return torch.rand(3) + index, torch.tensor(index)

class Stream(IterableDataset):
    def __iter__(self):
        yield from map(Numbers().__getitem__, range(70))

run = samebits.init(seed=1, lanes=4, threads=1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
is_stream = sys.argv[1] == "stream"
loader = DataLoader(Stream() if is_stream else Numbers(), batch_size=8, shuffle=None if is_stream else True, num_workers=int(sys.argv[3]))
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs(2):
    for step in run.steps(loader):
        ids = []
        def loss_of(batch):
            ids.extend(batch[1].tolist())
            return model(batch[0]).square().mean()
        step.backward(loss_of)
        optimizer.step()
        optimizer.zero_grad()
        drawn = torch.rand(1).item()
        killed = Path(f"killed-{step.number}")
        if str(step.number) in sys.argv[4].split() and run.is_main and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with open(f"seen-{run.rank}.txt", "a") as file:
            print(step.number, step.index, epoch, sorted(ids), drawn, torch.rand(1).item(), file=file)
    run.print(f"behind epoch {epoch}: {torch.rand(1).item()}")
"""
STEPS = 18


def trained(place, *options, kind="map", bad="", workers=0, kills="", code=0):
    place.mkdir()
    ended = run_script(place, SCRIPT, *options, args=(kind, bad, str(workers), kills))
    assert ended.code == code, ended.err
    return ended


def seen(place, ranks=1):
    """By step: its place, its samples over all ranks, and what was drawn in it."""
    found = {}
    for rank in range(ranks):
        for line in (place / f"seen-{rank}.txt").read_text().splitlines():
            head, ids, drawn = line.replace("[", "|").replace("]", "|").split("|")
            number, *where = map(int, head.split())
            found.setdefault(number, (where, [], drawn))[1].extend(map(int, filter(None, ids.split(","))))
    return {number: (where, sorted(ids), drawn) for number, (where, ids, drawn) in found.items()}


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_the_other_steps_have_the_samples_and_draws_that_they_would_have_had(tmp_path, kind):
    whole = trained(tmp_path / "whole", "-n", "1", kind=kind)
    some = trained(tmp_path / "some", "-n", "1", "--skip-steps", "1:2,5:5,9:10,18:18", kind=kind)
    before, after = seen(tmp_path / "whole"), seen(tmp_path / "some")
    assert sorted(before) == list(range(1, STEPS + 1))
    assert after == {number: one for number, one in before.items() if number not in {1, 2, 5, 9, 10, 18}}
    assert said(some, "skips") == ["the samples of steps 1 to 2 and step 5 and steps 9 to 10 and step 18"]
    assert "every sample once" in whole.err
    assert "every sample once" not in some.err
    assert json.loads(next(some.folder.glob("**/plan.json")).read_text())["skipped"] == [
        [1, 2],
        [5, 5],
        [9, 10],
        [18, 18],
    ]


@promise(
    "save-and-resume",
    "Steps that --skip-steps names are passed over with equal bits on 1, 2 and 4 ranks, under ddp and zero1, and through "
    "kills and resumes",
    also=["test_a_run_that_is_killed_and_resumed_passes_over_the_same_steps"],
)
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_equal_bits_on_any_number_of_ranks(tmp_path, kind):
    skips = ("--skip-steps", "3:4,9:9")
    one = trained(tmp_path / "1", "-n", "1", *skips, kind=kind)
    assert one.bits != trained(tmp_path / "whole", "-n", "1", kind=kind).bits
    others = [("2", "ddp", 0), ("4", "zero1", 0), ("2", "zero1", 2)]
    for number, (ranks, strategy, workers) in enumerate(others):
        place = tmp_path / f"other-{number}"
        other = trained(place, "-n", ranks, "--strategy", strategy, *skips, kind=kind, workers=workers)
        assert other.bits == one.bits
        assert other.out == one.out
        assert {step: ids for step, (_, ids, _) in seen(place, int(ranks)).items()} == {
            step: ids for step, (_, ids, _) in seen(tmp_path / "1").items()
        }


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_run_that_is_killed_and_resumed_passes_over_the_same_steps(tmp_path, kind):
    skips = ("--skip-steps", "3:4,9:10,18:18")
    bits = trained(tmp_path / "whole", "-n", "1", *skips, kind=kind).bits
    killed = trained(tmp_path / "killed", "-n", "2", *skips, kind=kind, kills="5 8 12")
    assert killed.err.count("start again") == 3
    assert killed.bits == bits
    # a state is saved behind each step, those that are passed over too
    place = tmp_path / "stopped"
    options = ("-n", "2", "--name", "exp1", "--save-every", "1steps", "--keep", "100", "--recover", "off")
    trained(place, *options, *skips, kind=kind, kills="8", code=137)
    states = {int(one.name[5:]): one for one in (place / "samebits-runs/exp1/states").glob("step-*")}
    assert {1, 2, 3, 4, 5} <= states.keys()
    for step in states.keys() - {1, 2, 3}:
        states[step].rename(place / f"aside-{step}")
    again = start(place, *options, "-n", "1", *skips, "script.py", kind, "", "0", "").finish()
    assert again.code == 0, again.err
    assert again.bits == bits


def test_what_cannot_be_read_can_be_passed_over(tmp_path):
    bad = seen_ids(tmp_path / "look", 4)
    broken = trained(tmp_path / "broken", "-n", "1", bad=f"{bad[0]} {bad[-1]}", code=1)
    assert "this one cannot be read" in broken.err
    fine = trained(tmp_path / "fine", "-n", "1", "--skip-steps", "4:4", bad=" ".join(map(str, bad)), workers=2, code=1)
    # each sample comes once an epoch: the second one has them too
    assert sorted(seen(tmp_path / "fine"))[:8] == [1, 2, 3, 5, 6, 7, 8, 9], fine.err
    assert "(epoch 2, step" in fine.err


def seen_ids(place, step):
    trained(place, "-n", "1")
    return seen(place)[step][1]


def test_one_rule_for_a_start_that_leaves_the_option_out(tmp_path):
    place, options = tmp_path / "runs", ("-n", "1", "--name", "exp1", "--save-every", "1steps", "--recover", "off")
    words = ("script.py", "map", "", "0", "")
    trained(place, *options, "--skip-steps", "8:12", kills="5", code=137)
    refused = start(place, *options, *words).finish()
    assert refused.code == 2
    assert "The run passes over steps 8 to 12, as it was started" in refused.err
    assert "Add --skip-steps 8:12" in refused.err
    made = start(place, *options, "--skip-steps", "3:3,8:12", *words).finish()
    assert made.code == 2
    assert "it has made it already" in made.err
    more = start(place, *options, "--skip-steps", "8:12,30:31", *words).finish()
    assert more.code == 0, more.err
    assert "steps 30 to 31" in more.err
    assert "ended after step 18" in more.err
    # what is behind may be left out
    behind = start(place, *options, "--skip-steps", "30:31", *words).finish()
    assert behind.code == 0, behind.err


def test_a_script_without_samebits_is_told(tmp_path):
    ended = run_script(tmp_path, "print('x')", "-n", "1", "--skip-steps", "1:2")
    assert ended.code == 0
    assert "--skip-steps passed over nothing" in ended.err


@pytest.mark.parametrize("text", ["5:3", "x:y", "0:1", "3", ""])
def test_bad_ranges_are_refused_before_anything_starts(tmp_path, text):
    write_script(tmp_path, "print('never')")
    refused = start(tmp_path, "-n", "1", "--skip-steps", text, "script.py").finish()
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, "", 2)
    assert refused.err.startswith("error: --skip-steps")
    assert refused.folder is None
