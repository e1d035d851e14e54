"""The fixtures `same_bits` and `repeatable`, loaded as users load plugins, in a pytest of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts.verifying import HONEST, SCRIPT
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

TESTS = """
def test_training_has_the_bits_of_main(same_bits):
    assert "SAME BITS on 1 rank: 2 steps" in same_bits("train.py", "--any", against="bits.json", steps=2)

def test_a_mistake_is_an_error(same_bits):
    same_bits("missing.py")
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)


@promise("what-verify-proves", "The pytest fixture `same_bits` fails with the report")
@pytest.mark.thorough
def test_bits_are_saved_compared_and_a_change_fails_the_test_with_the_report(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["samebits.testing.plugin"]\n')
    (tmp_path / "test_bits.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "train.py").write_text(SCRIPT.format(**HONEST))
    only = ("-k", "training")
    missing = run(tmp_path)
    assert missing.returncode == 1
    assert "bits.json cannot be read" in missing.stdout
    assert "UsageError: There is no script missing.py" in missing.stdout
    saved = run(tmp_path, *only, "--save-bits")
    assert saved.returncode == 0, saved.stdout
    assert run(tmp_path, *only).returncode == 0
    (tmp_path / "train.py").write_text(SCRIPT.format(**HONEST | {"lr": "2e-2"}))
    changed = run(tmp_path, *only)
    assert changed.returncode == 1
    assert "First difference: step 1, parameter 0.weight (layer 0): 1 rank against bits.json." in changed.stdout
    assert "Traceback" not in changed.stdout


FUNCTIONS = """
import random
import torch

def fit(turn=lambda: None):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        if step == 1:
            turn()
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()

def fit_with_noise():
    fit(lambda: torch.manual_seed(random.getrandbits(31)))
"""
TESTS_OF_FUNCTIONS = """
from training import fit, fit_with_noise

def longer():
    fit()
    fit()

def test_fit(repeatable):
    assert "SAME BITS in run 1 and run 2: 3 steps" in repeatable(fit)

def test_noise(repeatable):
    repeatable(fit_with_noise)

def test_saved(repeatable):
    repeatable(longer, against="bits.json")

def test_mistake(repeatable):
    repeatable(lambda: fit())
"""


def write_functions(folder: Path) -> None:
    (folder / "conftest.py").write_text('pytest_plugins = ["samebits.testing.plugin"]\n')
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "training.py").write_text(FUNCTIONS)
    (folder / "test_training.py").write_text(TESTS_OF_FUNCTIONS)


@promise(
    "what-verify-proves",
    "The pytest fixture `repeatable` runs a function that trains, without our calls, twice, and fails with the first step and tensor that differ",
)
@pytest.mark.thorough
def test_a_function_that_repeats_passes_and_one_with_noise_fails_with_its_step(tmp_path: Path) -> None:
    write_functions(tmp_path)
    found = run(tmp_path, "-k", "not saved")
    assert "2 failed, 1 passed" in found.stdout
    assert "first difference: step 2: gradient Linear.weight" in found.stdout
    assert "UsageError: No other process can import test_training.test_mistake.<locals>.<lambda>." in found.stdout


@pytest.mark.thorough
def test_a_function_that_was_changed_fails_against_its_saved_bits(tmp_path: Path) -> None:
    write_functions(tmp_path)
    saved = run(tmp_path, "-k", "saved", "--save-bits")
    assert saved.returncode == 0, saved.stdout
    (tmp_path / "training.py").write_text(FUNCTIONS.replace("lr=0.1", "lr=0.2"))
    changed = run(tmp_path, "-k", "saved")
    assert changed.returncode == 1
    assert "first difference: step 1: parameter Linear.weight" in changed.stdout
