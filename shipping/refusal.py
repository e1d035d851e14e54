"""The end of a script that cannot do what it was asked for: one sentence with the fix, and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable


class Refusal(Exception):  # noqa: N818 - a decision, not an error
    """The sentence."""


def ended(work: Callable[[], None]) -> int:
    """Do the work; return the exit code: 2 for a refusal, 1 if a program that the work needs failed and said why."""
    try:
        work()
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as failure:
        print(f"error: {' '.join(map(str, failure.cmd))} failed with exit code {failure.returncode}.", file=sys.stderr)
        return 1
    return 0
