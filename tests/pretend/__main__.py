"""pytest with pretended GPUs: `python -m tests.pretend [OPTIONS AND TESTS OF PYTEST]`, by default all that can have them."""

from __future__ import annotations

import os
import sys

from tests.pretend.build import CannotPretend
from tests.pretend.surroundings import surroundings
from tests.support.environment import ROOT

ALL = [
    "tests/pretend/rehearsed",
    "tests/cuda",
    "tests/ranks/test_same_bits.py",
    "tests/ranks/rank/strategy/test_staged.py",
    "tests/ranks/rank/strategy/test_zero1.py",
    "tests/ranks/rank/run/test_evaluation.py",
    "tests/ranks/rank/strategy/test_precision.py",
    "tests/ranks/rank/checkpoint/test_resume.py",
    "tests/ranks/launcher/test_spawn.py",
    "tests/ranks/launcher/test_torchrun_scripts.py",
    "tests/ranks/verify/test_verify.py",
    "tests/ranks/bench/test_bench.py",
]


def main() -> None:
    """Become pytest."""
    try:
        variables = surroundings()
    except CannotPretend as problem:
        sys.exit(f"no pretended GPUs: {problem}")
    os.chdir(ROOT)
    given = sys.argv[1:]
    tests = [] if any(one.startswith("tests/") for one in given) else ALL
    command = [sys.executable, "-m", "pytest", "-p", "tests.pretend.plugin", *given, *tests]
    os.execve(sys.executable, command, variables)


if __name__ == "__main__":
    main()
