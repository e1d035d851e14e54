"""The GPU day: what it makes of output, of limits, of machines and of wrong input. `tests/pretend` runs it on pretended GPUs."""

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environment import ROOT
from tests.support.launching import until

sys.path.insert(0, str(ROOT))  # the benchmarks are beside the tests, and in no package that is installed

from benchmarks.gpu_day.__main__ import parse, surroundings
from benchmarks.gpu_day.blocks import BLOCKS, Day, doctor_says
from benchmarks.gpu_day.carrying_out import carry_out, rows
from benchmarks.gpu_day.hardware import NO_GPU, Hardware, read
from benchmarks.gpu_day.judging import by_its_word, ends_well, ends_with, pytest_says, same_bits, speeds
from benchmarks.gpu_day.outcome import Ended, Outcome, State, Verdict
from benchmarks.gpu_day.record import FOLDER, file_for, record, write
from benchmarks.gpu_day.table import Table, summary
from benchmarks.gpu_day.tasks import BLOCK_S, Task

ONE = Hardware(("NVIDIA H100 80GB HBM3",), 80 << 30, "2.11.0+cu130", "13.0", "", "3.12.3", "", ("pytest",), False)
FOUR = Hardware(("A", "A", "A", "A"), 1, "", "", "", "", "", (), False)
NOON = dt.datetime(2026, 11, 23, 12, 0, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("judge", "ended", "state", "says"),
    [
        (ends_well, Ended(0, "a\nloss 1\n", ""), State.OK, "loss 1"),
        (ends_well, Ended(1, "", "FAILED rank 0\n  KeyError: 'x'\n\n  help    y\n  log     z\n"), State.FAILED, "exit code 1: KeyError: 'x'"),
        (by_its_word, Ended(0, 'x\n{"says": "2 ms", "ratio": 2}', ""), State.OK, "2 ms"),
        (by_its_word, Ended(0, '{"says": "differs", "ok": false}', ""), State.FAILED, "differs"),
        (same_bits, Ended(0, '{"exit_code": 0, "ranks": [1, 2], "steps": 5}', ""), State.OK, "same bits on 1, 2 ranks over 5 steps"),
        (same_bits, Ended(1, '{"exit_code": 1, "ranks": [1, 2], "difference": {"what": "w"}}', ""), State.FAILED, "not proved: {'what': 'w'}"),
        (speeds, Ended(0, '{"configurations": [{"name": "single", "step_ms": 1.5, "failed": null}]}', ""), State.OK, "single 1.50 ms"),
        (pytest_says, Ended(0, "..\n3 passed, 1 skipped in 2.00s\n", ""), State.OK, "3 passed, 1 skipped in 2.00s"),
        (pytest_says, Ended(1, "FAILED a.py::b - x\n1 failed, 2 passed in 2s\n", ""), State.FAILED, "1 failed, 2 passed in 2s"),
        (ends_with(1, "assert", "my.py"), Ended(1, "", "x\n my.py: CUDA assert\n"), State.OK, "my.py: CUDA assert"),
        (ends_with(1, "assert"), Ended(1, "", "another rank left"), State.FAILED, "exit code 1; 'assert' was not said: another rank left"),
        (doctor_says, Ended(0, '{"rows": [{"what": "driver", "state": "note", "text": "old"}]}', ""), State.OK, "driver: old"),
    ],
)  # fmt: skip
def test_what_a_process_printed_is_judged(judge, ended, state, says):
    verdict = judge(ended)
    assert (verdict.state, verdict.says) == (state, says)


def sleeper(name, seconds, limit_s=60.0, judge=ends_well):
    return Task(
        name, (sys.executable, "-c", f"import time; time.sleep({seconds}); print('{name} is done')"), judge, limit_s
    )


def test_a_task_that_fails_is_cut_off_or_cannot_start_does_not_stop_the_others(tmp_path):
    def broken(_ended):
        raise KeyError("new")

    sleep = f"sleep 60 & echo $! > {tmp_path}/child; wait"
    todo = [
        ("a", Task("needs", ("true",), needs=("nonsense", "pytest"))),
        ("a", Task("missing", ("/no/such/program",))),
        ("a", Task("hangs", ("sh", "-c", sleep), limit_s=1.0)),
        ("a", sleeper("unjudged", 0, judge=broken)),
        ("b", sleeper("well", 0)),
    ]
    seen = []
    outcomes = list(carry_out(Day(ONE, False), todo, dict(os.environ), lambda *told: seen.append(told)))
    assert [outcome.state for outcome in outcomes] == [
        State.NOT_HERE,
        State.FAILED,
        State.CUT_OFF,
        State.FAILED,
        State.OK,
    ]
    assert [outcome.says for outcome in outcomes] == [
        "nonsense is not installed",
        "exit code 127: /no/such/program cannot be started: No such file or directory",
        "did not end within 1 s",
        "what it printed could not be judged: KeyError: 'new'",
        "well is done",
    ]
    assert seen
    child = int((tmp_path / "child").read_text())
    until(lambda: not Path(f"/proc/{child}/exe").exists(), "the end of what a task has started")


def test_a_block_has_ten_minutes_and_its_rest_is_told(monkeypatch):
    monkeypatch.setattr("benchmarks.gpu_day.carrying_out.BLOCK_S", 2.0)
    todo = [("a", sleeper("long", 60)), ("a", sleeper("late", 0)), ("b", sleeper("other", 0))]
    outcomes = list(carry_out(Day(ONE, False), todo, dict(os.environ), lambda *_: None))
    assert [outcome.state for outcome in outcomes] == [State.CUT_OFF, State.CUT_OFF, State.OK]
    assert outcomes[1].says == "the block's ten minutes were over"


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("hardware", [ONE, FOUR])
def test_every_block_has_tasks_with_names_of_their_own_that_fit_into_its_time(hardware, quick):
    todo = rows(Day(hardware, quick), list(BLOCKS))
    assert len({(block, task.name) for block, task in todo}) == len(todo)
    assert all(0 < task.limit_s <= BLOCK_S for _, task in todo)
    several = {block for block, _ in todo} == set(BLOCKS)
    assert several == (hardware is FOUR), "what needs several GPUs is left out with one"
    for _, task in todo:
        for word in task.words:
            assert not word.startswith(str(ROOT)) or Path(word).exists(), word


@pytest.mark.parametrize(
    ("out", "err", "expected"),
    [
        ('{"gpus": [], "memory_bytes": 0, "torch": "2", "cuda": "", "driver": "", "python": "3", "no_compiled": "", "tools": [], "is_pretended": false}', "", NO_GPU),
        ("", "ModuleNotFoundError: No module named 'torch'\n", "What is here could not be asked: ModuleNotFoundError: No module named 'torch'. samebits and what it needs must be importable (pip install .)."),
        ("[1]", "", "What is here could not be asked: it printed nothing. samebits and what it needs must be importable (pip install .)."),
    ],
)  # fmt: skip
def test_a_machine_without_a_gpu_is_one_sentence(out, err, expected):
    assert read(out, err) == expected
    assert "\n" not in expected


def test_the_record_is_named_after_the_date_and_the_hardware(tmp_path):
    assert file_for(ONE, NOON) == FOLDER / "2026-11-23-1-nvidia-h100-80gb-hbm3.json"
    assert file_for(Hardware(("P",), 0, "", "", "", "", "", (), True), NOON) is None, "pretended GPUs show no figures"
    file = tmp_path / "new" / "x.json"
    write(record(ONE, [Outcome("bits", "gpt.py", State.OK, "same", 1.0, {"steps": 3})], NOON, 2.0), file)
    found = json.loads(file.read_text())
    assert found["hardware"]["gpus"] == ["NVIDIA H100 80GB HBM3"]
    assert found["outcomes"][0]["figures"] == {"steps": 3}


def test_the_columns_of_the_table_line_up_and_colours_are_asked_for():
    names = [("start", "doctor"), ("start", "a much longer name"), ("bits", "gpt.py")]
    outcomes = [Outcome(*name, State.OK, "fine\x1b[2J", 12.34) for name in names]
    table = Table(names, colours=False)
    lines = [table.head(), *map(table.row, outcomes)]
    assert len({line.index(word) for line, word in zip(lines, ("what", "fine", "fine", "fine"), strict=True)}) == 1
    assert "\x1b" not in "".join(lines)
    assert summary([*outcomes, Outcome("b", "t", State.FAILED, "", 0.0)], 61) == "3 ok, 1 FAILED in 61 s"


@pytest.mark.parametrize(
    "words",
    [
        ["bits"],
        ["--blocks", "bits,nix"],
        ["--blocks", "bits,bits"],
        ["--out"],
        ["--out", "a.txt"],
        ["--out", "no/x.json"],
    ],
)
def test_a_wrong_command_line_ends_with_code_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_tasks_get_this_checkout_and_no_colours():
    found = surroundings({"PYTHONPATH": "/mine", "PYTEST_XDIST_WORKER": "gw0"})
    assert found["PYTHONPATH"].split(os.pathsep) == [str(ROOT / "src"), str(ROOT), "/mine"]
    assert found["NO_COLOR"] == "1"
    assert "PYTEST_XDIST_WORKER" not in found


@pytest.mark.thorough
@pytest.mark.ranks
def test_a_machine_without_a_gpu_ends_with_code_2_and_a_sentence():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "benchmarks.gpu_day"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gpu-day: {NO_GPU}\n"


def test_a_verdict_of_speed_is_not_taken_for_one_on_pretended_gpus():
    task = Task("t", (sys.executable, "-c", 'print(\'{"says": "slow", "missed": true}\')'), by_its_word)
    for is_pretended, state in ((True, State.OK), (False, State.MISSED)):
        hardware = Hardware(("P",), 0, "", "", "", "", "", (), is_pretended)
        [outcome] = carry_out(Day(hardware, True), [("speed", task)], dict(os.environ), lambda *_: None)
        assert outcome.state is state
    assert by_its_word(Ended(0, '{"says": "s"}', "")) == Verdict(State.OK, "s", {})
