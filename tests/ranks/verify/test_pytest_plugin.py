"""The fixture `same_bits`, loaded as users load plugins, in a pytest of its own."""

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
