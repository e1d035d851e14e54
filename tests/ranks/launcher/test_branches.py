"""`run --from exp1@4 --name exp2`: a run that begins with a state of another one, of which nothing changes."""

import hashlib
import json
import os
import shutil

import pytest
from tensorboard.backend.event_processing import event_accumulator

from samebits.protocol.state_files.whole_state import trouble_of
from tests.support.launching import run_script, said, start, start_python, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
import argparse, os, signal
from pathlib import Path
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset
import samebits

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--decay", type=float, default=0.0)
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--schedule", default="")
parser.add_argument("--kill", type=int, default=0)
parser.add_argument("--gamma", type=float, default=0.5)
args = parser.parse_args()
run = samebits.init(seed=1, lanes=4, threads=1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.decay)
schedule = None
if args.schedule == "step":
    schedule = lr_scheduler.StepLR(optimizer, 3, gamma=args.gamma)
if args.schedule == "lambda":
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
if args.schedule == "sequence":
    parts = [lr_scheduler.ConstantLR(optimizer, 0.5, 2), lr_scheduler.CosineAnnealingLR(optimizer, 20)]
    schedule = lr_scheduler.SequentialLR(optimizer, parts, [3])
if args.schedule == "cycle":
    schedule = lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=20)
if args.schedule == "plateau":
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer)
data = TensorDataset(torch.randn(64, 3, generator=torch.Generator().manual_seed(2)))
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
run.state.scale = args.scale
for epoch in run.epochs(2):
    for step in run.steps(loader):
        step.backward(lambda batch: run.state.scale * model(batch[0]).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        run.print(step.number, f"{optimizer.param_groups[0]['lr']:.6g}", optimizer.param_groups[0]["weight_decay"], run.state.scale)
        run.log(loss=step.loss)
        if schedule is not None:
            schedule.step(*([1.0] if args.schedule == "plateau" else []))
        if step.number == args.kill and run.is_main and not Path(f"killed-{args.kill}").exists():
            Path(f"killed-{args.kill}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""
SAVES = ("--save-every", "2steps", "--keep", "20")


def parent(place, *args, name="exp1", options=()):
    ended = run_script(place, SCRIPT, "-n", "2", "--name", name, *SAVES, *options, args=args)
    assert ended.code == 0, ended.err
    return ended


def branch(place, *options, source="exp1@4", name="exp2", args=(), ranks="1"):
    return start(place, "-n", ranks, "--from", source, "--name", name, *options, "script.py", *args).finish()


def rows(text):
    return {int(line.split()[0]): line.split()[1:] for line in text.splitlines()}


def hashed(place):
    """All of a folder: names, links, contents and times."""
    digest = hashlib.sha256()
    for path in sorted(place.rglob("*")):
        found = path.lstat()
        digest.update(f"{path} {found.st_mode} {found.st_mtime_ns} {found.st_ino}".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def bits(place, name):
    newest = max((place / "samebits-runs" / name).glob("*/result.json"), key=os.path.getmtime)
    return json.loads(newest.read_text())["bits"]


@promise(
    "save-and-resume",
    "A branch (`run --from exp1@1200`) without changes has the bits of its parent, on any number of ranks and under another "
    "strategy, and nothing of the parent changes",
    also=["test_branches.py"],
)
def test_a_branch_without_changes_goes_on_as_its_parent_did(tmp_path):
    whole = parent(tmp_path)
    place = tmp_path / "samebits-runs"
    before = hashed(place / "exp1")
    one = branch(tmp_path)
    assert one.code == 0, one.err
    assert rows(one.out) == {step: row for step, row in rows(whole.out).items() if step > 4}
    assert said(one, "branch") == ["of exp1, after step 4"]
    for name, ranks, strategy in (("four", "4", "ddp"), ("zero", "2", "zero1")):
        assert branch(tmp_path, "--strategy", strategy, name=name, ranks=ranks).code == 0
        assert bits(tmp_path, name) == bits(tmp_path, "exp1")
    assert bits(tmp_path, "exp2") == bits(tmp_path, "exp1")
    assert hashed(place / "exp1") == before
    plan = json.loads(next((place / "exp2").glob("*/plan.json")).read_text())
    assert plan["parent"] == {"run": "exp1", "step": 4, "fresh": []}
    # without --save-every there is the copied state alone
    assert sorted(one.name for one in (place / "exp2/states").iterdir()) == ["step-00000004"]


def test_the_same_command_resumes_what_it_has_begun(tmp_path):
    parent(tmp_path)
    killed = branch(tmp_path, *SAVES, "--recover", "off", args=("--kill", "9"), ranks="2")
    assert killed.code == 137
    place = tmp_path / "samebits-runs"
    # of the parent nothing is needed any more
    (place / "exp1").rename(tmp_path / "aside")
    again = branch(tmp_path, *SAVES, args=("--kill", "9"))
    assert again.code == 0, again.err
    assert min(rows(again.out)) > 5
    assert said(again, "branch") == ["of exp1, after step 4"]
    (tmp_path / "aside").rename(place / "exp1")
    assert bits(tmp_path, "exp2") == bits(tmp_path, "exp1")
    for source, words in (("exp1@6", "not of exp1 after step 6"), ("exp0", "not of exp0")):
        refused = branch(tmp_path, source=source)
        assert refused.code == 2
        assert f"exp2 is a branch of exp1, after step 4, and {words}" in refused.err
    # the newest of the parent counted when the branch was made
    assert branch(tmp_path, source="exp1").code == 0
    # a branch of the branch
    grown = branch(tmp_path, source="exp2@12", name="exp3")
    assert grown.code == 0, grown.err
    assert bits(tmp_path, "exp3") == bits(tmp_path, "exp1")


def test_a_start_that_was_killed_while_it_copied_copies_again(tmp_path):
    parent(tmp_path)
    runs = tmp_path / "samebits-runs"
    whole = runs / "exp1/states/step-00000004"
    stage = runs / "exp2/states/.step-00000004.saving"
    stage.mkdir(parents=True)
    shutil.copy(whole / "state.json", stage)
    (stage / "saving.json").write_text('{"format": "samebits-state"}')
    (runs / "exp2/parent.json").write_text('{"run": "exp1", "step": 4}')
    # nothing has begun that could go on
    alone = start(tmp_path, "-n", "1", "--name", "exp2", *SAVES, "script.py").finish()
    assert alone.code == 2
    assert "This run is a branch of exp1, after step 4, and cannot begin there: there is no state" in alone.err
    ended = branch(tmp_path)
    assert ended.code == 0, ended.err
    assert min(rows(ended.out)) == 5
    assert trouble_of(runs / "exp2/states/step-00000004") is None
    assert [one.name for one in (runs / "exp2/states").iterdir()] == ["step-00000004"]


def test_the_newest_whole_state_is_taken(tmp_path):
    parent(tmp_path)
    states = tmp_path / "samebits-runs/exp1/states"
    with (states / "step-00000016/model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    (states / "step-00000014/manifest.json").unlink()
    (states / "step-00000020").symlink_to("step-00000002")
    ended = branch(tmp_path, source="exp1@newest")
    assert ended.code == 0, ended.err
    assert said(ended, "branch") == ["of exp1, after step 12"]
    assert min(rows(ended.out)) == 13
    for step, words in ((16, "is damaged"), (14, "manifest.json"), (20, "has no state after step 20")):
        refused = branch(tmp_path, source=f"exp1@{step}", name=f"b{step}")
        assert refused.code == 2
        assert words in refused.err
        assert "samebits-runs/b" not in refused.err
        again = branch(tmp_path, source="exp1@12", name=f"b{step}")
        assert again.code == 0, again.err


def test_links_and_devices_are_not_followed(tmp_path):
    parent(tmp_path)
    state = tmp_path / "samebits-runs/exp1/states/step-00000004"
    (state / "secret.safetensors").symlink_to("/etc/passwd")
    ended = branch(tmp_path)
    assert ended.code == 0, ended.err
    assert not (tmp_path / "samebits-runs/exp2/states/step-00000004/secret.safetensors").exists()
    model = (state / "model.safetensors").read_bytes()
    (state / "model.safetensors").unlink()
    (tmp_path / "model").write_bytes(model)
    (state / "model.safetensors").symlink_to(tmp_path / "model")
    refused = branch(tmp_path, name="exp3")
    assert refused.code == 2
    (state / "model.safetensors").unlink()
    os.mkfifo(state / "model.safetensors")
    assert branch(tmp_path, name="exp4").code == 2


REFUSED = {
    "no run": ({"source": "exp7@4"}, "There is no run exp7, neither here nor in samebits-runs"),
    "no step": ({"source": "exp1@5"}, "exp1 has no state after step 5; the nearest are after steps 4 and 6."),
    "behind": ({"source": "exp1@99"}, "exp1 has no state after step 99; the nearest is after step 16."),
    "itself": ({"name": "exp1"}, "exp1 cannot be a branch of itself"),
    "a path to itself": ({"name": "exp1", "source": "samebits-runs/exp1@4"}, "exp1 cannot be a branch of itself"),
    "taken": ({"name": "other"}, "other has states of its own (the newest after step 16)"),
    "a single start": ({"name": "single"}, "is the run folder of one start"),
    "from a single start": ({"source": "single"}, "single has no states: it ran without --save-every."),
    "empty": ({"source": "@4"}, "--from '@4' names no run."),
    "hostile": ({"source": "../\x1b[31m\n@4"}, "There is no run ../\\x1b[31m\\n"),
    "long": ({"source": "x" * 5000}, "There is no run xxx"),
    "a bad name": ({"name": "../exp2"}, "--name must be a folder's name"),
    "a URL": ({"source": "s3://bucket/exp1@4"}, "--from takes a run of this disk"),
    "steps behind it": (
        {"options": ("--skip-steps", "3:5")},
        "--skip-steps names steps 3 to 4, and the branch begins after",
    ),
    "fresh words": ({"options": ("--fresh", "lr;rm -rf")}, "cannot be the name of an option"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("made")
    parent(place)
    parent(place, name="other")
    assert start(place, "-n", "1", "--name", "single", "script.py").finish().code == 0
    return place


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_sentence_before_anything_starts(made, case):
    how, sentence = REFUSED[case]
    before = hashed(made / "samebits-runs")
    refused = branch(made, *how.get("options", ()), **{key: value for key, value in how.items() if key != "options"})
    assert refused.code == 2
    problem, fix = refused.err.splitlines()
    assert problem.startswith("error: ")
    assert fix.startswith("help: ")
    assert sentence in problem
    assert refused.out == ""
    assert hashed(made / "samebits-runs") == before


def test_from_needs_a_name_and_fresh_a_run(made):
    unnamed = start(made, "--from", "exp1@4", "script.py").finish()
    assert (unnamed.code, "--from needs a name" in unnamed.err) == (2, True)
    alone = start(made, "--fresh", "lr", "script.py").finish()
    assert (alone.code, "--fresh takes options" in alone.err) == (2, True)


def test_a_changed_option_ends_the_start(made):
    before = hashed(made / "samebits-runs/exp1")
    cases = {
        ("--lr", "0.05"): "The script makes lr=0.05 of optimizer1, and the state has 0.1.",
        (
            "--lr",
            "0.05",
            "--decay",
            "0.5",
        ): "lr=0.05 of optimizer1, and the state has 0.1; weight_decay=0.5 of optimizer1",
        ("--scale", "2"): "The script makes scale=2.0 of run.state, and the state has 1.0.",
    }
    for number, (args, sentence) in enumerate(cases.items()):
        refused = branch(made, name=f"changed{number}", args=args, ranks="2")
        assert refused.code == 2
        assert sentence in refused.err
        assert "Add --fresh" in refused.err
        assert refused.out == ""
        # with the option it goes on
        names = ",".join(word[2:] for word in args[::2]).replace("decay", "weight_decay")
        taken = branch(made, "--fresh", names, name=f"changed{number}", args=args)
        assert taken.code == 0, taken.err
        row = rows(taken.out)[5]
        assert row == [
            args[args.index("--lr") + 1] if "--lr" in args else "0.1",
            args[args.index("--decay") + 1] if "--decay" in args else "0.0",
            "2.0" if "--scale" in args else "1.0",
        ]
    unknown = branch(made, "--fresh", "larning_rate", name="unknown")
    assert unknown.code == 2
    assert "--fresh names larning_rate, and neither an optimizer of the script nor run.state has that." in unknown.err
    assert hashed(made / "samebits-runs/exp1") == before


@promise(
    "save-and-resume",
    "A branch with --fresh lr and --skip-steps has equal bits on 1, 2 and 4 ranks, under ddp and zero1, and through a kill",
)
def test_equal_bits_of_a_changed_branch(made):
    options, args = ("--fresh", "lr", "--skip-steps", "7:8"), ("--lr", "0.01")
    found = {}
    for name, ranks, strategy in (("c1", "1", "ddp"), ("c2", "2", "ddp"), ("c4", "4", "zero1"), ("c3", "2", "zero1")):
        ended = branch(made, *options, "--strategy", strategy, name=name, ranks=ranks, args=args)
        assert ended.code == 0, ended.err
        found[name] = bits(made, name), ended.out
        assert sorted(rows(ended.out)) == [5, 6, *range(9, 17)]
        assert {row[0] for row in rows(ended.out).values()} == {"0.01"}
    assert len(set(found.values())) == 1
    killed = branch(made, *options, *SAVES, "--recover", "off", name="killed", ranks="2", args=(*args, "--kill", "9"))
    assert killed.code == 137
    again = branch(made, *options, *SAVES, name="killed", args=(*args, "--kill", "9"))
    assert again.code == 0, again.err
    assert bits(made, "killed") == found["c1"][0]
    restarted = branch(made, *options, name="restarted", ranks="2", args=(*args, "--kill", "6"))
    assert restarted.code == 0, restarted.err
    assert "start again" in restarted.err
    assert bits(made, "restarted") == found["c1"][0]
    # a later start does not take another rate in silence either
    other = branch(made, *options, *SAVES, name="killed", args=("--lr", "0.02"))
    assert other.code == 2
    assert "The script makes lr=0.02 of optimizer1, and the state has 0.01." in other.err
    assert "begin another branch" in other.err


@pytest.mark.parametrize("schedule", ["step", "lambda", "sequence", "plateau"])
def test_a_schedule_goes_on_as_a_multiple_of_the_new_rate(tmp_path, schedule):
    args = ("--schedule", schedule)
    whole = rows(parent(tmp_path, *args).out)
    refused = branch(tmp_path, args=(*args, "--lr", "0.2"))
    assert refused.code == 2, refused.err
    ended = branch(tmp_path, "--fresh", "lr", args=(*args, "--lr", "0.2"))
    assert ended.code == 0, ended.err
    found = rows(ended.out)
    assert sorted(found) == list(range(5, 17))
    for step, row in found.items():
        assert float(row[0]) == pytest.approx(2 * float(whole[step][0]), rel=1e-5)


def test_what_a_scheduler_cannot_do_honestly_is_refused(tmp_path):
    parent(tmp_path, "--schedule", "cycle")
    args = ("--schedule", "cycle", "--lr", "0.2")
    refused = branch(tmp_path, "--fresh", "lr,max_lr,min_lr", args=args)
    assert refused.code == 2
    assert "--fresh lr cannot be carried into the OneCycleLR of optimizer," in refused.err
    betas = branch(tmp_path, "--fresh", "betas", args=args[:2])
    assert betas.code == 2
    assert "betas, which OneCycleLR of optimizer sets in each step" in betas.err
    stepped = tmp_path / "step"
    stepped.mkdir()
    parent(stepped, "--schedule", "step")
    gamma = branch(stepped, "--fresh", "gamma", args=("--schedule", "step", "--gamma", "0.1"))
    assert gamma.code == 2


def test_a_script_without_samebits_is_told(made):
    write_script(made, "print('plain')", "plain.py")
    ended = start(made, "-n", "1", "--from", "exp1@4", "--name", "plain", "plain.py").finish()
    assert ended.code == 0
    assert "--from began with no state: the script did not call samebits.init()." in ended.err


def test_the_report_and_the_tracker_know_the_parent(tmp_path):
    parent(tmp_path)
    ended = branch(tmp_path, "--track", "tensorboard", "--skip-steps", "6:6", source="exp1@4")
    assert ended.code == 0, ended.err
    reader = event_accumulator.EventAccumulator(str(tmp_path / "samebits-runs/exp2"))
    reader.Reload()
    (text,) = reader.Tensors("parent/text_summary")
    assert text.tensor_proto.string_val == [b"branched from exp1, after step 4"]
    assert [one.step for one in reader.Scalars("loss")] == [5, *range(7, 17)]
    for runs in (("exp2",), ("exp1", "exp2")):
        said = start_python(tmp_path, "-m", "samebits", "report", *runs, "-o", "page.html").finish()
        assert said.code == 0, said.err
        assert '"branched from exp1 after step 4"' in (tmp_path / "page.html").read_text()
    # the newest lines of the parent are as before, so nothing differs before the step that was left out
    assert '"differences":["","loss at step 6"]' in (tmp_path / "page.html").read_text()


def test_a_step_of_a_branch_can_be_replayed(tmp_path):
    parent(tmp_path)
    args = ("--lr", "0.05")
    ended = branch(tmp_path, "--fresh", "lr", "--skip-steps", "6:7", *SAVES, args=args)
    assert ended.code == 0, ended.err
    (tmp_path / "samebits-runs/exp1").rename(tmp_path / "aside")
    for step, begins in ((5, 4), (9, 8)):
        made = start_python(tmp_path, "-m", "samebits", "replay", "exp2", "--step", str(step), "--json").finish()
        assert made.code == 0, made.out + made.err
        found = json.loads(made.out)
        assert (found["begins_after_step"], found["difference"], found["made"]) == (begins, None, True)
    skipped = start_python(tmp_path, "-m", "samebits", "replay", "exp2", "--step", "6").finish()
    assert skipped.code == 2
    assert "has no step 6: its samples were passed over (--skip-steps 6:7)" in skipped.err


def test_a_branch_can_be_recorded_and_audited(tmp_path):
    parent(tmp_path, options=("--record",))
    args, options = ("--lr", "0.05"), ("--record", "--fresh", "lr", "--skip-steps", "7:8", *SAVES)
    ended = branch(tmp_path, *options, args=args)
    assert ended.code == 0, ended.err
    (tmp_path / "samebits-runs/exp1").rename(tmp_path / "aside")
    shown = start_python(tmp_path, "-m", "samebits", "record", "show", "exp2").finish()
    assert "exp1, after step 4" in shown.out
    assert "[[7, 8]]" in shown.out
    audited = start_python(tmp_path, "-m", "samebits", "audit", "exp2").finish()
    assert audited.code == 0, audited.out + audited.err
    assert audited.out.startswith("MATCH")
