"""`samebits replay`: a step of a run that was killed comes again on other ranks, can be looked into, and changes nothing of the run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import run_script, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
    import os, signal, sys, torch, samebits

    run = samebits.init(seed=0, lanes=4, threads=1)
    torch.manual_seed(1)
    x = torch.randn(48, 6)
    y = x.sum(1, keepdim=True)
    y[29] = 1000.0  # a bad label
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.utils.data.TensorDataset(x, y)
    model, optimizer, loader = run.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=16, shuffle=True))
    for epoch in run.epochs(6):
        for step in run.steps(loader):
            if step.number == 9 and run.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == os.environ.get("KILLED_AT"):
                os.kill(os.getpid(), signal.SIGKILL)
            for inputs, targets in step:
                outputs = model(inputs)
                if step.number == 14 and step.lane == 2:
                    outputs = outputs + 0.0 * torch.sqrt(outputs - outputs)
                run.backward((outputs - targets).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=step.loss)
    with open("written.txt", "a") as file:
        file.write("by the run")
"""


def files_of(folder: Path) -> dict[str, str]:
    """The content of each file below a folder."""
    return {
        str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest()
        for one in sorted(folder.rglob("*"))
        if one.is_file() and "__pycache__" not in one.parts
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `exp1` of two ranks, of which one was killed."""
    folder = tmp_path_factory.mktemp("replayed")
    options = ["-n", "2", "--name", "exp1", "--save-every", "4steps", "--keep", "9"]
    ended = run_script(folder, SCRIPT, *options, env={"KILLED_AT": "0"})
    assert ended.code == 0, ended.err
    return folder


def replayed(place: Path, *words: str, code: int, given: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "samebits", "replay", "-q", *words]
    source = {"input": given} if given is not None else {"stdin": subprocess.DEVNULL}
    ended: subprocess.CompletedProcess[str] = subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=100, **source
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended


@promise(
    "a-step-comes-again",
    "`samebits replay RUN --step N` makes a step of a run again, on any ranks and strategy, from the newest state before it, "
    "with the values that the run logged; nothing of the run changes",
    also=[
        "test_a_lane_with_a_bad_sample_stands_out",
        "test_a_changed_script_is_told_by_the_first_other_value",
        "test_the_line_of_the_forward_is_named_whose_backward_has_a_nan",
        "test_the_debugger_opens_in_the_script_at_the_first_lane_of_the_step",
    ],
)
def test_a_step_of_a_killed_run_comes_again_on_other_ranks_and_nothing_changes(place: Path) -> None:
    before = files_of(place)
    for step, ranks, after in ((11, (), 8), (12, ("-n", "4", "--strategy", "zero1"), 8)):
        told = json.loads(replayed(place, "exp1", "--step", str(step), "--json", *ranks, code=0).stdout)
        assert told["begins_after_step"] == after
        assert (told["made"], told["values_compared"], told["difference"]) == (True, step - after, None)
    assert files_of(place) == before


def test_a_lane_with_a_bad_sample_stands_out(place: Path) -> None:
    def rows_of(step: int) -> list[dict[str, Any]]:
        told = json.loads(replayed(place, "exp1", "--step", str(step), "--rows", "--json", code=0).stdout)
        (rows,) = told["passes"]
        assert [row["lane"] for row in rows] == [0, 1, 2, 3]
        assert len({index for row in rows for index in row["samples"]}) == 16
        return list(rows)

    # One of the three steps of the second epoch has it.
    made = ((step, rows_of(step)) for step in (4, 5, 6))
    step, rows = next(item for item in made if any(29 in row["samples"] for row in item[1]))
    worst = max(rows, key=lambda row: row["norm"])
    assert 29 in worst["samples"]
    assert worst["loss"] == max(row["loss"] for row in rows) > 1e4
    text = replayed(place, "exp1", "--step", str(step), "--rows", code=0).stdout
    assert text.startswith(f"SAME VALUES step {step} of exp1/")
    assert "gradient norm" in text


@pytest.mark.thorough
def test_a_changed_script_is_told_by_the_first_other_value(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "samebits-runs", tmp_path / "samebits-runs")
    plan = next((tmp_path / "samebits-runs").glob("exp1/*/plan.json"))
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "folder": str(tmp_path)}))
    os.utime(plan, (1, 1))
    write_script(tmp_path, SCRIPT.replace("y[29] = 1000.0", "y[29] = 1001.0"))
    ended = replayed(tmp_path, "exp1", "--step", "3", code=1)
    assert ended.stdout.startswith("OTHER VALUES step 3 of exp1/")
    assert "loss of step " in ended.stdout
    assert "The script was changed after that run had begun." in ended.stdout


def test_the_line_of_the_forward_is_named_whose_backward_has_a_nan(place: Path) -> None:
    ended = replayed(place, "exp1", "--step", "14", "--anomaly", code=1)
    assert ended.stdout.startswith("FAILED IN step 14 of exp1/")
    line = "script.py:20 outputs = outputs + 0.0 * torch.sqrt(outputs - outputs)"
    assert f"the NaN comes from the backward of {line}" in " ".join(ended.stdout.split())


@pytest.mark.thorough
def test_the_debugger_opens_in_the_script_at_the_first_lane_of_the_step(place: Path) -> None:
    commands = "p ('here', step.number, step.lane, tuple(inputs.shape))\nc\n"
    ended = replayed(place, "exp1", "--step", "11", "--pdb", code=0, given=commands)
    assert "('here', 11, 0, (4, 6))" in ended.stdout
    assert "SAME VALUES step 11 of exp1/" in ended.stdout


@pytest.mark.thorough
def test_a_step_that_the_script_never_makes_is_not_reached(place: Path) -> None:
    ended = replayed(place, "exp1", "--step", "19", code=125)
    assert ended.stdout.startswith("NOT REACHED step 19 of exp1/")
    assert "The script came to its end after step 18." in ended.stdout


@pytest.mark.parametrize(
    "changed", [{"lanes": float("inf")}, {"lanes": 10**9}, {"lanes": 0}, {"not_exact": None}], ids=str
)
def test_decisions_that_no_run_makes_are_a_sentence_and_start_nothing(
    place: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    shutil.copytree(place / "samebits-runs" / "exp1", tmp_path / "exp1")
    decided = next(tmp_path.glob("exp1/*/decided.json"))
    told = {**json.loads(decided.read_text()), **changed}
    decided.write_text(json.dumps({name: value for name, value in told.items() if value is not None}))
    assert (
        "is not a run folder of this version." in replayed(place, str(tmp_path / "exp1"), "--step", "3", code=2).stderr
    )


def test_a_state_is_copied_without_links_to_folders_and_pipes_and_the_run_may_be_named_from_elsewhere(
    place: Path, tmp_path: Path
) -> None:
    shutil.copytree(place / "samebits-runs" / "exp1", tmp_path / "exp1")
    state = tmp_path / "exp1" / "states" / "step-00000004"
    (state / "loop").symlink_to("..")
    (state / "dangling").symlink_to("nowhere")
    os.mkfifo(state / "pipe")
    told = json.loads(replayed(tmp_path, "exp1", "--step", "6", "--json", code=0).stdout)
    assert (told["begins_after_step"], told["values_compared"]) == (4, 2)
    assert told["run"].startswith("exp1/")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exp1", "--step", "0"], "--step must be at least 1, but is 0."),
        (["exp1"], "Missing option '--step'"),
        (["exp1", "--step", "3", "-n", "5"], "-n 5 is more than the run's 4 lanes."),
        (["exp1", "--step", "3", "-n", "0"], "-n must be at least 1, but is 0."),
        (["exp1", "--step", "3", "--pdb"], "--pdb needs a terminal to ask."),
        (["exp1", "--step", "3", "--strategy", "best"], "best"),
        (["nowhere", "--step", "3"], "There is no run nowhere"),
    ],
)
def test_a_mistake_is_a_sentence_and_starts_nothing(place: Path, words: list[str], said: str) -> None:
    ended = replayed(place, *words, code=2)
    assert said in ended.stderr
    assert not ended.stdout
