"""pytest with pretended GPUs: `python -m tests.pretend [OPTIONS OF PYTEST]`, by default all tests that can have them."""

from __future__ import annotations

import os
import sys

from tests.pretend.build import CannotPretend
from tests.pretend.surroundings import surroundings
from tests.support.environment import ROOT


def main() -> None:
    """Become pytest."""
    try:
        variables = surroundings()
    except CannotPretend as problem:
        sys.exit(f"no pretended GPUs: {problem}")
    os.chdir(ROOT)
    command = [sys.executable, "-m", "pytest", *(sys.argv[1:] or ["tests/pretend", "tests/cuda"])]
    os.execve(sys.executable, command, variables)


if __name__ == "__main__":
    main()
