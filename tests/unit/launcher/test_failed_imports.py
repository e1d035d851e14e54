"""Which failed imports are explained by a limit of addresses, and what is raised then."""

from __future__ import annotations

import subprocess
import sys

import pytest

from samebits.errors import EnvironmentFailure, UsageError
from samebits.protocol.installation import check_import, failed_import

TRACE = 'Traceback (most recent call last):\n  File "torch/__init__.py", line 1\n'
NO_LIMIT, FEW = -1, 500_000_000


@pytest.mark.parametrize(
    "says",
    [
        "ImportError: libtorch_cuda.so: failed to map segment from shared object",
        "ImportError: libc10.so: cannot allocate memory in static TLS block",
        "OSError: [Errno 12] Cannot allocate memory",
        "OSError: libcublas.so.12: cannot create shared object descriptor: Cannot allocate memory",
        "MemoryError",
        "RuntimeError: std::bad_alloc",
    ],
)
def test_an_import_that_runs_out_of_addresses_is_a_mistake_with_the_fix(says: str) -> None:
    error = failed_import("torch", TRACE + says, FEW)
    assert isinstance(error, UsageError)
    assert (
        error.problem == "The process that imports torch for all ranks did not survive that with 476 MiB of addresses."
    )
    assert error.fix == "Raise the limit with `ulimit -v unlimited`."
    assert isinstance(failed_import("torch", TRACE + says, NO_LIMIT), EnvironmentFailure)


def test_a_package_that_is_not_installed_is_a_mistake_with_the_fix() -> None:
    error = failed_import("torch", f"{TRACE}ModuleNotFoundError: No module named 'torch'\n", FEW)
    assert isinstance(error, UsageError)
    assert error.fix == f"Run {sys.executable} -m pip install torch."


@pytest.mark.parametrize(
    "says",
    [
        "ModuleNotFoundError: No module named 'torch._C'",
        "ModuleNotFoundError: No module named 'mine'",
        "ImportError: undefined symbol: x",
    ],
)
def test_any_other_import_that_fails_is_told_in_its_own_words(says: str) -> None:
    error = failed_import("torch", f"{TRACE}{says}\n", FEW)
    assert type(error) is EnvironmentFailure
    assert str(error) == f"torch cannot be imported here:\n{TRACE}{says}"


def test_the_limit_explains_a_death_only_before_the_import_has_ended() -> None:
    check_import(False, NO_LIMIT)
    check_import(True, FEW)
    with pytest.raises(
        UsageError, match=r"^The process that imports torch for all ranks did not survive that with 476 MiB"
    ):
        check_import(False, FEW)


def test_the_command_line_without_click_is_a_mistake_with_the_fix() -> None:
    code = "import sys; sys.modules['click'] = None; import samebits.cli.main"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, "pip install click" in ended.stderr, "Traceback" in ended.stderr) == (2, True, False)
