"""The examples, in a shortened form, as a user starts them."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launching import Finished, start

pytestmark = pytest.mark.ranks

EXAMPLES = Path(__file__).parents[3] / "examples"


def run_example(place: Path, num_ranks: int, name: str, *args: str, strategy: str = "") -> Finished:
    """Run an example with one thread per rank until it succeeds."""
    options = ("-n", str(num_ranks), "--threads", "1", *(("--strategy", strategy) if strategy else ()))
    finished = start(place, *options, str(EXAMPLES / name), *args).finish()
    assert finished.code == 0, finished.err
    return finished


def logged(finished: Finished, value: str) -> list[float]:
    """Every value that was logged under this name."""
    assert finished.folder is not None
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    return [line[value] for line in lines if value in line]


def test_digits_learns_and_its_weights_have_the_same_bits_on_one_rank_and_on_two(tmp_path: Path) -> None:
    digests = []
    for num_ranks in (1, 2):
        place = tmp_path / str(num_ranks)
        place.mkdir()
        finished = run_example(place, num_ranks, "digits.py", "--epochs", "4")
        assert logged(finished, "accuracy")[-1] > 0.95
        assert len(logged(finished, "loss")) == 4 * 23
        digests.append(hashlib.sha256((place / "digits.safetensors").read_bytes()).hexdigest())
    assert digests[0] == digests[1]


@pytest.mark.thorough
def test_gpt_falls_below_the_unigram_entropy_on_two_ranks(tmp_path: Path) -> None:
    finished = run_example(tmp_path, 2, "gpt.py", "--steps", "40", "--test-every", "20")
    entropy = re.search(r"unigram entropy of the test files: ([\d.]+) nats", finished.out)
    assert entropy is not None, finished.out
    first, last = logged(finished, "test_loss")
    assert last < first
    assert last < float(entropy.group(1)) - 0.3
    assert "def " in finished.out
    assert (tmp_path / "gpt.safetensors").stat().st_size > 1_000_000


@pytest.mark.thorough
def test_gpt_with_its_tied_weights_has_the_same_bits_in_stages(tmp_path: Path) -> None:
    digests = []
    for strategy in ("", "zero1", "model_parallel", "pipeline"):
        place = tmp_path / (strategy or "alone")
        place.mkdir()
        options = ("--steps", "2", "--test-every", "2")
        finished = run_example(place, 2 if strategy else 1, "gpt.py", *options, strategy=strategy)
        digests.append([hashlib.sha256((place / "gpt.safetensors").read_bytes()).hexdigest(), finished.out])
    assert len({weights for weights, _ in digests}) == 1


@pytest.mark.thorough
def test_a_run_that_is_killed_and_goes_on_elsewhere_has_the_bits_of_a_quiet_one(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "killed_at_random.py", "--epochs", "4", "--kills", "4", "--seed", "1"]
    done = subprocess.run(
        [*command, "--plot", "killed.png"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every loss and every bit is equal" in done.stdout
    assert (tmp_path / "killed.png").read_bytes().startswith(b"\x89PNG")


def test_kills_that_cannot_be_are_refused() -> None:
    command = [sys.executable, EXAMPLES / "killed_at_random.py", "--epochs", "1", "--kills", "99"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--kills must be between 0 and 11, half of the steps" in done.stderr


@pytest.mark.thorough
def test_the_notebook_prints_what_its_page_shows(tmp_path: Path) -> None:
    cells = [
        cell for cell in json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"] if cell["cell_type"] == "code"
    ]
    as_at_a_prompt = "import sys; sys.ps1 = '>>> '\n"
    program = as_at_a_prompt + "\n".join("".join(cell["source"]) for cell in cells)
    done = subprocess.run(
        [sys.executable, "-"], input=program, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = "".join("".join(output.get("text", "")) for cell in cells for output in cell["outputs"])
    printed = [line for line in done.stdout.splitlines() if re.match("last loss|rank 1", line)]
    assert len(printed) == 3
    assert [line for line in printed if line not in shown] == []
