"""A run works without a home, a locale, a terminal or standard streams, with left-over variables, and without root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
import os, signal, sys
import samebits, torch
run = samebits.init(lanes=2)
model = torch.nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.ones(8, 4), torch.ones(8, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1)
model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for epoch in run.epochs(2):
    for step in run.steps(loader):
        for x, y in step:
            run.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
with open("trained", "a") as file:
    file.write(f"{run.rank} of {run.world_size}, {os.getuid()}\\n")
if "stall" in sys.argv and run.rank == 1:
    while True:
        pass
run.barrier()
"""
LEFT_OVER = {
    "RANK": "7", "WORLD_SIZE": "4", "LOCAL_RANK": "9", "LOCAL_WORLD_SIZE": "x", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "x",
    "TORCHELASTIC_RUN_ID": "gone", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "x",
    "TORCHELASTIC_MAX_RESTARTS": "x", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8",
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMI_RANK": "x", "PMI_SIZE": "3",
    "SAMEBITS_RANK": "junk", "SAMEBITS_RANK_MEETING": "junk", "SAMEBITS_NURSERY": "1-junk",
}  # fmt: skip
ODD = {
    "LC_ALL": "xx", "LANG": "C", "PYTHONIOENCODING": "ascii", "HOME": "/nonexistent", "TERM": "dumb", "COLUMNS": "0",
    "LINES": "abc", "TMPDIR": "/nonexistent", "PATH": "",
}  # fmt: skip
ANOTHER_USER = ("unshare", "-U", "--map-user=1234", "--map-group=1234")
PYTHON = (sys.executable, "-m", "samebits")


def can(*command: str) -> bool:
    try:
        return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def run(
    place: Path, *words: str, redirected: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with its streams redirected as a shell does it."""
    (place / "script é.py").write_text(SCRIPT)
    own = {name: value for name, value in os.environ.items() if name != "HOME"}
    command = ["/bin/sh", "-c", f'exec "$@" {redirected}', "sh", *words]
    return subprocess.run(
        command, cwd=place, env={**own, **(env or {})}, capture_output=True, text=True, timeout=100, check=False
    )


def trained(place: Path) -> list[str]:
    return sorted((place / "trained").read_text().splitlines())


def outcome(place: Path) -> dict[str, object]:
    [file] = (place / "samebits-runs").glob("*/outcome.json")
    told: dict[str, object] = json.loads(file.read_text())
    return told


@pytest.mark.thorough
def test_a_run_works_in_the_oddest_surroundings_at_once(tmp_path: Path) -> None:
    done = run(tmp_path, *PYTHON, "run", "-n", "2", "script é.py", redirected="<&-", env={**ODD, **LEFT_OVER})
    assert done.returncode == 0, done.stderr
    assert "done      2 epochs, 4 steps" in done.stderr
    assert trained(tmp_path) == [f"{rank} of 2, {os.getuid()}" for rank in (0, 1)]


PLAIN = """
import torch, torch.distributed as dist
dist.init_process_group()
there = torch.ones(1)
dist.all_reduce(there)
print("there", int(there))
"""


@pytest.mark.parametrize("text", [SCRIPT, PLAIN], ids=["samebits", "torch"])
def test_names_that_are_no_text_in_utf_8_are_names_like_others(tmp_path: Path, text: str) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    place.mkdir()
    script = os.fsdecode(b"tr\xe9n.py")
    (place / script).write_text(text)
    done = run(place, *PYTHON, "run", "-n", "2", "--name", "one", "--save-every", "1steps", script)
    assert done.returncode == 0, done.stderr
    assert "does not work with torch" not in done.stderr, done.stderr
    assert "utf-8" not in done.stderr, done.stderr
    assert text is SCRIPT or "there 2" in done.stdout
    assert text is PLAIN or len(trained(place)) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("redirected", [">&-", "2>&-", "<&- >&- 2>&-", "< /dev/full > /dev/null 2>&1"])
def test_a_run_works_without_its_standard_streams(tmp_path: Path, redirected: str) -> None:
    done = run(tmp_path, *PYTHON, "run", "-n", "2", "script é.py", redirected=redirected)
    assert done.returncode == 0, done.stderr
    assert outcome(tmp_path)["exit_code"] == 0
    assert len(trained(tmp_path)) == 2


@promise(
    "shut",
    "A run trains without root, and a stuck rank is found; so do all commands",
    also=["test_every_other_command_works_for_a_user_without_root"],
)
@pytest.mark.thorough
@pytest.mark.skipif(not can(*ANOTHER_USER), reason="this system lets nobody become another user in a namespace")
def test_a_user_without_root_trains_and_is_told_where_a_rank_is_stuck(tmp_path: Path) -> None:
    options = ("--on-stall", "stop", "--stall-after", "2", "--name", "mine")
    done = run(tmp_path, *ANOTHER_USER, *PYTHON, "run", "-n", "2", *options, "script é.py", "stall")
    assert done.returncode == 1, done.stderr
    assert trained(tmp_path) == [f"{rank} of 2, 1234" for rank in (0, 1)]
    sentence = done.stderr[done.stderr.index("FAILED") :]
    assert "rank 1 has not reached" in sentence
    line = next(number for number, text in enumerate(SCRIPT.splitlines(), 1) if "while True" in text)
    assert f"script é.py:{line}" in sentence or f"script é.py:{line + 1}" in sentence, "which only its stack tells"


@pytest.mark.thorough
@pytest.mark.skipif(not can(*ANOTHER_USER), reason="this system lets nobody become another user in a namespace")
def test_every_other_command_works_for_a_user_without_root(tmp_path: Path) -> None:
    for words in (
        *(("doctor",), ("run", "-n", "2", "--name", "mine", "--save-every", "1steps", "script é.py")),
        *(("watch", "mine"), ("diagnose", "mine"), ("checkpoint", "verify", "mine")),
        ("verify", "--ranks", "1,2", "--steps", "2", "--accept", "plain", "script é.py"),
    ):
        done = run(tmp_path, *ANOTHER_USER, *PYTHON, *words, env={"TMPDIR": str(tmp_path)})
        assert done.returncode == 0, done.stderr + done.stdout
