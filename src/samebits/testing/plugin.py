"""A pytest plugin: the fixtures `same_bits`, of scripts, and `repeatable`, of functions, run `samebits verify` in a test.

    pytest_plugins = ["samebits.testing.plugin"]                 # in the conftest.py beside pytest's root

    def test_training_has_the_bits_of_main(same_bits):
        same_bits("train.py", "--epochs", "1", against="tests/train_bits.json", steps=5)

    def test_fit_gives_the_same_bits_twice(repeatable):
        repeatable(fit)  # without our calls; or against="tests/fit_bits.json"

`pytest --save-bits` writes the files instead. Each call runs real training, in processes of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
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
        words = ["--ranks", ",".join(map(str, numbers)), *options, *_compared(against, steps, saves=self._saves)]
        return _run([*words, os.fspath(script), "--", *args], self._folder)


SCRIPT = """import importlib, operator, sys
sys.path[:] = {path!r}
operator.attrgetter({name!r})(importlib.import_module({module!r}))()
"""


class Repeatable:
    """The callable that the fixture provides."""

    def __init__(self, folder: Path, saves: bool, place: Path) -> None:
        self._folder, self._saves, self._place = folder, saves, place

    def __call__(
        self,
        function: Callable[[], object],
        *,
        against: str | os.PathLike[str] | None = None,
        steps: int | None = None,
        options: Sequence[str] = (),
    ) -> str:
        """Run a function that trains twice, each time in a process of its own, and return the report.

        The test fails with the report where a bit differs, and where there is nothing to compare.

        Args:
            function: from the top of a module that can be imported, the test's own too; called without arguments.
            against: a file of bits, from pytest's root directory, with which one run is compared instead; `pytest --save-bits` writes it.
            steps: to compare, by default those of the file, else 20; the function is ended behind them.
            options: of `samebits verify`, such as "--repeat=5" or "--where".

        Raises:
            UsageError: for a function that no other process can import.
        """
        module, name = function.__module__, function.__qualname__
        if "<" in name or module == "__main__":
            raise UsageError(f"No other process can import {module}.{name}.", "Move it to the top of a module.")
        script = self._place / f"{name}.py"
        script.write_text(SCRIPT.format(path=sys.path, name=name, module=module))
        words = [*options, *_compared(against, steps, saves=self._saves)]
        return _run([*words, os.fspath(script)], self._folder)


def _compared(against: str | os.PathLike[str] | None, steps: int | None, *, saves: bool) -> list[str]:
    words = ["--steps", str(steps)] if steps is not None else []
    return [*words, *(["--save" if saves else "--against", os.fspath(against)] if against is not None else [])]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --save-bits to pytest."""
    parser.getgroup("samebits").addoption(
        "--save-bits", action="store_true", help="let against=FILE of same_bits and repeatable write the files instead"
    )


@pytest.fixture
def same_bits(pytestconfig: pytest.Config) -> SameBits:
    """Run `samebits verify` on a script; see `SameBits`."""
    return SameBits(pytestconfig.rootpath, bool(pytestconfig.getoption("--save-bits")))


@pytest.fixture
def repeatable(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Repeatable:
    """Run `samebits verify` on a function that trains; see `Repeatable`."""
    saves = bool(pytestconfig.getoption("--save-bits"))
    return Repeatable(pytestconfig.rootpath, saves, tmp_path_factory.mktemp("repeatable"))


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
