"""pytest with pretended GPUs: ranks of the test kit compute on them unless a test says otherwise.

Under `lockstep run` nothing has to be said: it finds the GPUs, and takes them where there is one for each rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from lockstep.testing import ranks

_run_ranks = ranks.run_ranks


def run_ranks(function: Callable[..., Any], started: ranks.Started, *args: Any) -> list[Any]:
    """`run_ranks` on GPUs, with more time: every operation copies."""
    return _run_ranks(function, dataclasses.replace(started, device="cuda", timeout_s=100.0), *args)


ranks.run_ranks = run_ranks
