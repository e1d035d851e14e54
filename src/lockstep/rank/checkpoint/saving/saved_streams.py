"""Whether saved random streams can be restored: tried on generators that nobody draws from."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

MERSENNE_WORDS = 624
"""NumPy trusts the position in a state, and would read beyond its table."""


def wrong_streams(saved: Any) -> str:
    """What is wrong with them, in words; empty when nothing is.

    Args:
        saved: what `lockstep.rank.init.streams.Streams.snapshot` made once.
    """
    try:
        torch.Generator().set_state(saved["torch"])
        own = saved["numpy"]["state"]
        if not 0 <= own["pos"] <= MERSENNE_WORDS or own["key"].shape != (MERSENNE_WORDS,):
            return "its random state of NumPy is not valid"
        np.random.RandomState().set_state(saved["numpy"])
        random.Random().setstate(saved["python"])  # noqa: S311 - no secrets
        of_gpus = [*filter(lambda one: one is not None, (saved["device"], *saved.get("devices", [])))]
        if not all(isinstance(one, Tensor) and one.dtype is torch.uint8 for one in of_gpus):
            return "its random state of the device is not valid"
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        return f"its random state is not valid ({str(error).partition(chr(10))[0]})"
    return "" if isinstance(saved, Mapping) else "its random states are not a dictionary"
