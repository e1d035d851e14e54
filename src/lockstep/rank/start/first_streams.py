"""Before the script's first line: the random streams of a script that calls `lockstep.init` are fixed, all others the system's.

With fixed streams ranks make equal models before `lockstep.init`, too. Any other script is left as under torchrun: each rank is
seeded by the operating system. A fork shares the nursery's generators, so there they are seeded anew; what the script imports
itself seeds itself.
"""

from __future__ import annotations

import random
import sys
from types import ModuleType

from lockstep.notices import say
from lockstep.rank.start.guards.wrapping import when_imported

SEED = 0
TORCHS = SEED + (1 << 32)
"""The stream of seed 0 too: torch's CPU generator takes the lower half. The whole tells it from `torch.manual_seed(0)`."""


def start_streams(*, fixed: bool) -> None:
    """Seed Python's, NumPy's and torch's streams.

    Args:
        fixed: whether all ranks begin with the same; a fresh rank gets torch's and NumPy's when it imports them.
    """
    random.seed(SEED if fixed else None)
    if fixed:
        when_imported("numpy", _fix_numpy)
        when_imported("torch", _fix_torch)
        return
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()


def _fix_numpy(numpy: ModuleType) -> None:
    numpy.random.seed(SEED)


def _fix_torch(torch: ModuleType) -> None:
    torch.default_generator.manual_seed(TORCHS)


def say_equal_draws() -> None:
    """Say at the end of a script what the fixed streams did to it, if it drew from torch's without `lockstep.init` or a seed."""
    torch = sys.modules.get("torch")
    if torch is None or torch.default_generator.initial_seed() != TORCHS:
        return
    untouched = torch.Generator().manual_seed(TORCHS).get_state()
    if not torch.equal(torch.default_generator.get_state(), untouched):
        say(
            "every rank drew the same random numbers: the script has lockstep.init in its source, but did not call it. Give "
            "each rank a seed: torch.manual_seed(seed + rank)."
        )
