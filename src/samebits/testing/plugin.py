"""A pytest plugin: the fixture `same_bits` runs `samebits verify` in a test.

    pytest_plugins = ["samebits.testing.plugin"]                 # in the conftest.py beside pytest's root

    def test_training_has_the_bits_of_main(same_bits):
        same_bits("train.py", "--epochs", "1", against="tests/train_bits.json", steps=5)

`pytest --save-bits` writes the files instead. Each call runs real training, in processes of its own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from samebits.errors import UsageError
from samebits.machine.processes import interpreter

WIDTH = "100"


class SameBits:
    """The callable that the fixture provides."""

    def __init__(self, folder: Path, saves: bool) -> None:
        self._folder, self._saves = folder, saves

    def __call__(
        self,
        script: str | os.PathLike[str],
        *args: str,
        against: str | os.PathLike[str] | None = None,
        ranks: Sequence[int] | None = None,
        steps: int | None = None,
        options: Sequence[str] = (),
    ) -> str:
        """Verify a script and return the report. The test fails with the report when a bit differs.

        Args:
            script: path of the script, from pytest's root directory.
            args: the script's own arguments.
            against: a file of bits, from pytest's root directory; `pytest --save-bits` writes it.
            ranks: numbers of ranks, by default 1 with `against`, else 1, 2 and 4.
            steps: to compare, by default those of the file, else 20.
            options: of `samebits verify`, such as "--accept=plain" or "--in-place".

        Raises:
            UsageError: when verify is called wrongly, or the script uses samebits wrongly.
        """
        numbers = ranks or ((1,) if against is not None else (1, 2, 4))
        words = ["--ranks", ",".join(map(str, numbers)), *options]
        words += ["--steps", str(steps)] if steps is not None else []
        words += ["--save" if self._saves else "--against", os.fspath(against)] if against is not None else []
        return _run([*words, os.fspath(script), "--", *args], self._folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --save-bits to pytest."""
    parser.getgroup("samebits").addoption(
        "--save-bits", action="store_true", help="let same_bits(..., against=FILE) write the files instead of comparing"
    )


@pytest.fixture
def same_bits(pytestconfig: pytest.Config) -> SameBits:
    """Run `samebits verify` on a script; see `SameBits`."""
    return SameBits(pytestconfig.rootpath, bool(pytestconfig.getoption("--save-bits")))


def _run(words: Sequence[str], folder: Path) -> str:
    command = [interpreter(), "-m", "samebits", "verify", *words]
    environment = os.environ | {"COLUMNS": WIDTH}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode == 2:
        said = f"{ended.stdout}{ended.stderr}".strip().removeprefix("error: ")
        problem, _, fix = said.replace("\n  help    ", "\nhelp: ").partition(
            "\nhelp: "
        )  # of a rank, or of verify itself
        raise UsageError(problem, fix)
    if ended.returncode:
        pytest.fail(f"samebits verify {' '.join(words)}\n{ended.stdout}{ended.stderr}", pytrace=False)
    return ended.stdout
