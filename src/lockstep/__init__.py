"""lockstep: run a PyTorch script on every device you have; the result does not depend on how many took part.

How to read this package, from the user's script to the bits:

1. `launch/` starts and watches the ranks; `cli/` is its command line. Neither imports torch.
2. `rank/` joins the ranks, pins the device, seeds the random streams.
3. `layout/` is the arithmetic: samples into lanes, lanes onto ranks, the lane tree.
4. `feed/` fetches samples lane by lane; `run/` walks through steps and lanes.
5. `strategy/` collects gradients and buffers of lanes; `transport/` adds them up in the tree's order.
6. `checkpoint/` is what outlives the run: weights, and the state from which it goes on.
7. `journal/` is what a rank leaves for the launcher to read.
8. `prove/` runs a script several ways and compares the bits.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lockstep.errors import LockstepError, PeerLost, PromiseBroken, RankFailed, UsageError, WorldError

if TYPE_CHECKING:
    from lockstep.checkpoint.weights import load_weights
    from lockstep.launch.spawn import spawn
    from lockstep.run.agreed import Agreed
    from lockstep.run.run import Run
    from lockstep.run.start import finish, init
    from lockstep.run.step import Step
    from lockstep.run.tally import Tally

__version__ = "0.1.0"

_PLACES = {
    "Agreed": "lockstep.run.agreed",
    "Run": "lockstep.run.run",
    "Step": "lockstep.run.step",
    "Tally": "lockstep.run.tally",
    "finish": "lockstep.run.start",
    "init": "lockstep.run.start",
    "load_weights": "lockstep.checkpoint.weights",
    "spawn": "lockstep.launch.spawn",
}

__all__ = [
    "Agreed",
    "LockstepError",
    "PeerLost",
    "PromiseBroken",
    "RankFailed",
    "Run",
    "Step",
    "Tally",
    "UsageError",
    "WorldError",
    "__version__",
    "finish",
    "init",
    "load_weights",
    "spawn",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a name of the facade when it is first used, so that `import lockstep` alone does not import torch."""
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
