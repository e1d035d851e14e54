"""The GPU day runs to its end on pretended GPUs, block by block, so that the first real one does not find its mistakes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pytest

from tests.support.environment import ROOT
from tests.support.launching import killed_at_the_end

sys.path.insert(0, str(ROOT))  # the benchmarks are in no package that is installed

from benchmarks.gpu_day.blocks import BLOCKS

pytestmark = pytest.mark.ranks
OPEN: set[tuple[str, str]] = set()
"""What lockstep gets wrong on a GPU today; whoever mends one takes it away."""


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


LACKING = ("py_spy", "lightning_fabric", "matplotlib")
HIDING = f"""
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {LACKING}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture
def as_it_travels(tmp_path):
    """A copy without .git of what git knows, and a Python that has what the image of a lent GPU has: torch, tools to build
    with, and neither lockstep nor py-spy."""
    copy, home = tmp_path / "copy", tmp_path / "venv"
    files = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, files.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    venv.create(home, symlinks=True)
    [packages] = home.glob("lib/python*/site-packages")
    (packages / "hiding.py").write_text(HIDING)
    (packages / "those_of_the_tests.pth").write_text(f"{sysconfig.get_path('purelib')}\nimport hiding\n")
    for tool in ("cmake", "ninja"):
        (home / "bin" / tool).symlink_to(Path(sys.executable).with_name(tool))
    path = os.pathsep.join(one for one in os.environ["PATH"].split(os.pathsep) if not Path(one, "py-spy").exists())
    return copy, home / "bin" / "python", {**os.environ, "CUDA_VISIBLE_DEVICES": "0", "PATH": path}


def first(copy, python, variables, *words):
    command = [str(python), "-m", "benchmarks.gpu_day", "--first", "--out", str(copy / "first.json"), *words]
    began = time.monotonic()
    done = subprocess.run(command, cwd=copy, env=variables, capture_output=True, text=True, timeout=600)
    return done, json.loads((copy / "first.json").read_text()), time.monotonic() - began


def test_the_first_minutes_begin_in_a_copy_of_the_checkout(as_it_travels):
    done, told, _ = first(*as_it_travels, "--only", "python alone", "--minutes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(one["task"], one["state"]) for one in told["outcomes"]] == [("python alone", "ok")]
    assert told["hardware"]["no_compiled"], "nothing was compiled beforehand"
    assert told["commit"] == ""


@pytest.mark.thorough
@pytest.mark.compiles
def test_the_first_minutes_end_in_their_time_with_a_record(as_it_travels):
    done, told, took_s = first(*as_it_travels)
    assert took_s < 540
    bad = [one for one in told["outcomes"] if one["state"] not in ("ok", "not here")]
    assert (done.returncode, bad) == (0, []), done.stdout
    assert told["built"]["state"] == "built", told["built"]
    [doctor] = [one for one in told["outcomes"] if one["task"] == "doctor"]
    assert "py-spy is not installed" in doctor["says"]
    assert len((as_it_travels[0] / "first.json").read_bytes()) < 1 << 20
    assert {one["block"] for one in told["outcomes"]} >= {
        "trains",
        "bits",
        "kernels",
        "ways back",
        "states",
        "speed",
        "strategies",
    }


@pytest.mark.thorough
@pytest.mark.compiles
def test_too_little_time_takes_the_first_tasks_and_says_what_was_left_out(as_it_travels):
    done, told, took_s = first(*as_it_travels, "--minutes", "1")
    assert took_s < 65
    assert done.returncode == 0, done.stdout
    assert told["outcomes"][0]["state"] == "ok"
    assert {one["state"] for one in told["outcomes"]} >= {"ok", "no time"}


@pytest.mark.thorough
def test_the_tasks_are_named_without_running_any():
    done = gpu_day("--list")
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == set(BLOCKS)


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
