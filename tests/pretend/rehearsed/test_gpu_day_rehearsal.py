"""The GPU day runs to its end on pretended GPUs, block by block, so that the first real one does not find its mistakes."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.support.environment import ROOT
from tests.support.launching import killed_at_the_end

sys.path.insert(0, str(ROOT))  # the benchmarks are in no package that is installed

from benchmarks.gpu_day.blocks import BLOCKS

pytestmark = pytest.mark.ranks
OPEN: set[tuple[str, str]] = set()
"""What samebits gets wrong on a GPU today; whoever mends one takes it away."""


def gpu_day(*words, **variables):
    environment = {**os.environ, **variables}
    command = [sys.executable, "-m", "benchmarks.gpu_day", "--quick", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)


@pytest.mark.thorough
@pytest.mark.parametrize("block", list(BLOCKS))
def test_a_block_runs_to_its_end(block, tmp_path):
    gpus = {} if BLOCKS[block].least_gpus > 1 else {"CUDA_VISIBLE_DEVICES": "0"}
    done = gpu_day("--blocks", block, "--json", "--out", str(tmp_path / "day.json"), **gpus)
    told = json.loads((tmp_path / "day.json").read_text())
    assert json.loads(done.stdout) == told
    assert told["hardware"]["is_pretended"]
    assert told["outcomes"]
    bad = [
        one
        for one in told["outcomes"]
        if one["state"] not in ("ok", "not here") and (one["block"], one["task"]) not in OPEN
    ]
    assert not bad, bad
    assert done.returncode == int(any(one["state"] == "FAILED" for one in told["outcomes"]))


def test_the_table_has_a_row_for_each_task_and_pretended_gpus_leave_no_record():
    before = {*(ROOT / "benchmarks").rglob("*.json")}
    done = gpu_day("--blocks", "attention,sanitizer", CUDA_VISIBLE_DEVICES="0")
    assert done.returncode == 0, done.stdout + done.stderr
    hardware, _, head, ran, lacking, _, last = done.stdout.splitlines()
    assert hardware.startswith("1 x Pretended H100, 80 GiB; torch ")
    assert ran.split()[:5] == ["attention", "gradients,", "five", "times", "ok"]
    assert head.index("what it says") == lacking.index("compute-sanitizer is not installed")
    assert last.startswith("1 ok, 1 not here in ")
    assert {*(ROOT / "benchmarks").rglob("*.json")} == before


@pytest.mark.thorough
def test_an_interrupt_ends_what_runs_and_keeps_the_record(tmp_path):
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_day",
        "--blocks",
        "start,bits",
        "--out",
        str(tmp_path / "day.json"),
    ]
    with killed_at_the_end(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        while "doctor" not in running.stdout.readline():
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        assert running.wait(100) == 130
    told = json.loads((tmp_path / "day.json").read_text())
    assert told["outcomes"][0]["task"] == "doctor"
    assert len(told["outcomes"]) < 6
