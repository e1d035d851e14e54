"""A plugin of pytest: ranks of the test kit compute on GPUs, unless a test says otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from samebits.testing import ranks

LIMIT_S = 240.0
_run_ranks = ranks.run_ranks


def run_ranks(function: Callable[..., Any], started: ranks.Started, *args: Any) -> list[Any]:
    """`run_ranks` on GPUs."""
    return _run_ranks(function, dataclasses.replace(started, device="cuda", timeout_s=LIMIT_S), *args)


ranks.run_ranks = run_ranks
