"""LOCKSTEP_SHARE_GPU=4: up to four ranks may share a GPU. For tests and proofs where there are fewer GPUs than ranks.

NCCL refuses two ranks on one device, so what such ranks exchange goes through host memory: the same bits, more slowly. Both
worlds read the variable, so it holds under every launcher.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lockstep.errors import UsageError

NAME = "LOCKSTEP_SHARE_GPU"
MOST = 64


def ranks_per_gpu(variables: Mapping[str, str]) -> int:
    """How many ranks may share a GPU; 1 unless the variable says more.

    Raises:
        UsageError: when it is no number that can be.
    """
    text = variables.get(NAME, "")
    if text and (re.fullmatch("[0-9]{1,3}", text, re.ASCII) is None or not 1 <= int(text) <= MOST):
        raise UsageError(f"{NAME} must be a number of ranks from 1 to {MOST}, but is {text!r}.", "Set it to 4.")
    return int(text or 1)


def index_of(local_rank: int, gpus: int) -> int:
    """The GPU of a rank: its own number, and counted again from 0 where there are fewer GPUs than ranks."""
    return local_rank % max(gpus, 1)


def how_to_share(ranks: int, gpus: int) -> str:
    """What lets so many ranks run on so many GPUs, of which there is at least one."""
    return f"{NAME}={-(-ranks // gpus)} lets ranks share {'it' if gpus == 1 else 'them'}, for tests and proofs"
