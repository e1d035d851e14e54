"""Scripts without our calls: runs are compared with runs, and what differs is named down to the operator."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samebits.machine.leftovers import descendants, have_ended
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
import os, random, sys
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(64, 8), torch.randint(0, 2, (64,))
for step in range({steps}):
    rows = torch.randint(0, 64, (16,))
    {turn}
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("over")
"""


def write(folder, turn="pass", steps=9, **changes):
    text = SCRIPT.format(turn=turn, steps=steps)
    for before, after in changes.items():
        text = text.replace(*after) if isinstance(after, tuple) else text.replace(before, after)
    (folder / "train.py").write_text(text)


def verify(folder, *words, json_too=True):
    command = [
        sys.executable,
        "-m",
        "samebits",
        "verify",
        "--quiet",
        *(["--json"] if json_too else []),
        *words,
        "train.py",
    ]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, check=False)
    return ended.returncode, json.loads(ended.stdout) if json_too and ended.stdout else ended.stdout + ended.stderr


def until(holds):
    for _ in range(600):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("it never holds")


@promise(
    "what-verify-proves",
    "Runs of a script without our calls are compared with runs, in private files, and nothing is said about numbers of ranks",
)
def test_a_repeatable_script_has_the_same_bits_and_nothing_is_said_of_ranks(tmp_path):
    write(tmp_path)
    code, found = verify(tmp_path, "--steps", "4", "--summary", "summary.md")
    assert (code, found["verdict"], found["compares"], found["steps"]) == (0, "same bits", "runs with runs", 4)
    assert any("other numbers of processes" in one for one in found["not_covered"])
    assert [one["is_cut"] for one in found["runs"]] == [True, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary.md", "train.py"]
    heading, _, verdict = (tmp_path / "summary.md").read_text().splitlines()[:3]
    assert heading == "### samebits verify `train.py`"
    assert verdict.startswith("**SAME BITS in run 1 and run 2: 4 steps")


@promise(
    "what-verify-proves",
    "Where two runs differ, the step, the tensor, the first operator that differs with its line, and what helped are named",
)
def test_what_differs_is_named_with_its_step_its_operator_and_what_helped(tmp_path):
    write(tmp_path, "rows = rows if step != 2 else torch.tensor([random.randrange(64) for _ in rows])")
    code, found = verify(tmp_path, "--steps", "4", "--where")
    assert (code, found["difference"]["step"], found["difference"]["kind"]) == (1, 3, "gradient")
    operator = found["operator"]
    assert operator["why"] == "input"
    assert operator["line"].endswith("train.py:13")
    assert [(one["name"], one["helped"]) for one in found["tried"]] == [("one seed", True)]
    assert found["tried"][0]["advice"] == "call random.seed(0) at the top of the script", "torch has a seed"


@promise("what-verify-proves", "With `--against` a commit under test gives 0, 1 or 125, as `git bisect run` wants it")
@pytest.mark.parametrize(
    ("changed", "code", "verdict"),
    [
        (("nn.LayerNorm(16)", "nn.LayerNorm(16, eps=1.01e-5)"), 1, "different bits"),
        (("import random", "import random  # a comment"), 0, "same bits"),
        (("print('over')", "pass"), 0, "same bits"),
        (("range(9)", "range(2)"), 1, "different bits"),
        (("for step in", "raise SystemExit(3)\nfor step in"), 125, "cannot tell"),
        (("optimizer.step()", "pass"), 125, "cannot tell"),
        (("for step in", "for step in ("), 125, "cannot tell"),
        (("import os", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), 125, "cannot tell"),
        (("import os", "import time; time.sleep(99)"), 125, "cannot tell"),
        (("import os", "input()"), 125, "cannot tell"),
    ],
)
@pytest.mark.thorough
def test_bits_of_a_commit_are_0_1_or_125_for_bisect(tmp_path, changed, code, verdict):
    write(tmp_path)
    assert verify(tmp_path, "--save", "bits.json", "--steps", "3")[0] == 0
    write(tmp_path, changed=changed)
    ended, found = verify(tmp_path, "--against", "bits.json", "--timeout", "8" if "sleep" in changed[1] else "60")
    assert (ended, found["verdict"]) == (code, verdict)


def test_a_script_that_makes_another_step_than_the_file_s_is_different(tmp_path):
    write(tmp_path, steps=2)
    code, found = verify(tmp_path, "--save", "bits.json", "--steps", "3")
    assert (code, found["steps"]) == (0, 2)
    write(tmp_path, steps=3)
    code, found = verify(tmp_path, "--against", "bits.json", json_too=False)
    assert code == 1
    assert "bits.json ends after step 2, and run 1 makes a step 3" in found


@pytest.mark.thorough
def test_processes_as_torchrun_starts_them_are_compared_rank_by_rank(tmp_path):
    write(tmp_path)
    text = (tmp_path / "train.py").read_text()
    text = text.replace("torch.manual_seed(0)", "torch.distributed.init_process_group('gloo')\ntorch.manual_seed(0)")
    text = text.replace("optimizer = ", "model = nn.parallel.DistributedDataParallel(model)\noptimizer = ")
    (tmp_path / "train.py").write_text(text)
    code, found = verify(tmp_path, "-n", "2", "--steps", "3")
    assert (code, found["processes"], found["steps"]) == (0, 2, 3)


@pytest.mark.thorough
def test_another_commit_is_compared_and_the_operator_of_the_change_is_named(tmp_path):
    write(tmp_path)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    write(tmp_path, changed=("nn.LayerNorm(16)", "nn.LayerNorm(16, eps=1.5e-5)"))
    code, found = verify(tmp_path, "--against-commit", "HEAD", "--where", "--steps", "3")
    assert (code, found["difference"]["step"]) == (1, 1)
    assert found["operator"]["name"] == "aten.native_layer_norm.default"
    assert found["tried"] == []
    listed = subprocess.run(["git", "worktree", "list"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(("words", "scripts"), [((), 1), (("-n", "2"), 2)])
def test_all_processes_of_a_script_end_with_a_command_that_is_killed_outright(tmp_path, words, scripts):
    pids = tmp_path / "pids"
    wait = f"import os, time; open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(99)"
    load = f"torch.utils.data.DataLoader([1], num_workers=1, collate_fn=lambda _: exec({wait!r}))"
    child = "import subprocess; subprocess.Popen(['sleep', '99'], start_new_session=True)"
    write(tmp_path, changed=("torch.manual_seed(0)", f"{child}\nnext(iter({load}))"))
    command = [sys.executable, "-m", "samebits", "verify", "-q", "--in-place", *words, "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until(lambda: pids.exists() and len(pids.read_text().split()) == scripts)
        started = descendants(process.pid)
        assert len(started) > 3 * scripts
        process.kill()
    until(lambda: have_ended(started))


@pytest.mark.thorough
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_leaves_no_process_behind(tmp_path, ending):
    # What the script starts ends a while after it is asked to.
    slow = "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(2), sys.exit())); print(1, flush=True); time.sleep(99)"
    start = f"import subprocess; child = subprocess.Popen([sys.executable, '-c', {slow!r}], stdout=-1); child.stdout.read(2)"
    tell = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); child.wait()"
    write(tmp_path, changed=("import torch", f"{start}; {tell}"))
    command = [sys.executable, "-m", "samebits", "verify", "-q", "--in-place", "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        process.send_signal(ending)
        time.sleep(0.5)
        process.send_signal(ending)
        assert "no process and no file of the runs is left" in process.communicate(timeout=30)[1]
    assert process.returncode == 128 + ending
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ranks", "1,2"], "--ranks is about ranks with lanes"),
        (["--repeat", "0"], "--repeat must be more than 0"),
        (["--steps", "0"], "--steps must be more than 0"),
        (["--timeout", "nan"], "--timeout must be more than 0"),
        (["--threads", "2"], "--threads is about ranks with lanes"),
        (["--device", "cpu"], "--device is about ranks with lanes"),
        (["--mesh", "ddp=2"], "--mesh is about ranks with lanes"),
        (["--allow", "aten.x"], "--allow is about ranks with lanes"),
        (["--repeat", "3", "--ranks", "1,2"], "but --repeat compares runs"),
        (["--against-commit", "HEAD"], "needs a git repository"),
        (["--summary", "nowhere/summary.md"], "--summary nowhere/summary.md cannot be written"),
        (["--python", "nowhere/python"], "cannot be started"),
    ],
)
def test_options_that_cannot_be_are_one_sentence_before_anything_starts(tmp_path, words, sentence):
    write(tmp_path)
    code, text = verify(tmp_path, *words, json_too=False)
    assert code == 2
    assert sentence in text


TWO_CAUSES = """
import random
import numpy, torch
from torch import nn

torch.set_num_threads(1)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
own = numpy.random.default_rng()
for step in range(9):
    x = torch.randn(4, 8)
    if step >= 2:
        x += float(own.random())
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


def test_a_cause_that_helps_a_part_of_the_way_is_kept_for_the_next_try(tmp_path):
    (tmp_path / "train.py").write_text(TWO_CAUSES)
    code, found = verify(tmp_path, "--steps", "4")
    assert (code, found["difference"]["kind"]) == (1, "initial")
    first, second = found["tried"]
    assert (first["name"], first["helped"], first["until"]) == ("one seed", False, "step 3, gradient Linear.weight")
    assert (second["name"], second["helped"]) == ("one seed and one seed for every generator", True)
    assert "numpy.random.default_rng(0)" in second["advice"]


BY_CHANCE = """
import os
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
parameter = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([parameter], lr=0.1)
# As a race between threads: the second run of all is another one.
folder = os.environ["RUNS"]
open(os.path.join(folder, str(len(os.listdir(folder)))), "w").close()
apart = len(os.listdir(folder)) == 2
for step in range(3):
    optimizer.zero_grad()
    (parameter * (2 + (apart and step == 1))).sum().backward()
    optimizer.step()
"""


@pytest.mark.thorough
def test_a_seed_that_changes_nothing_is_not_named(tmp_path, monkeypatch):
    folder = tmp_path / "runs"
    folder.mkdir()
    monkeypatch.setenv("RUNS", str(folder))
    (tmp_path / "train.py").write_text(BY_CHANCE)
    code, found = verify(tmp_path, "--steps", "3", "--in-place")
    assert (code, found["difference"]["step"]) == (1, 2)
    assert [(one["name"], one["helped"], one["is_idle"]) for one in found["tried"][:2]] == [
        ("one seed", False, True),
        ("one seed for every generator", False, True),
    ]
