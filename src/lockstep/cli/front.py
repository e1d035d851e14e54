"""The entry of `lockstep` and `python -m lockstep`: a run that a nursery waits for begins before anything else is imported."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Run the command; the process ends with its exit code."""
    if sys.argv[1:2] == ["run"]:
        from lockstep.launch.warm.client import run_warm  # noqa: PLC0415 - only here

        try:
            code = run_warm()
        except KeyboardInterrupt:
            code = 130
        if code is not None:
            sys.exit(code)
    importlib.import_module("lockstep.cli.main").main()
