"""lockstep: run a PyTorch script on every device you have; the result does not depend on how many took part.

How to read this package, from the user's script to the bits:

1. `cli/` reads a command, `launch/` starts and watches the ranks; `machine/` is what they run on. None imports torch.
2. `handover/` is what a launcher and a rank hand each other, `journal/` what a rank leaves to be read even when dead.
3. `rank/` joins the ranks, pins the device and seeds the random streams.
4. `layout/` is the arithmetic: samples into lanes, lanes onto ranks, the lane tree.
5. `feed/` fetches samples lane by lane; `run/` walks through steps and lanes.
6. `strategy/` collects gradients and buffers of lanes; `transport/` adds them up in the tree's order. `node/` is the shared
   memory underneath, `process_group/` what torch.distributed sees of it.
7. `checkpoint/` is what outlives the run: weights, and the state from which it goes on.
8. `trials/` runs a script several times, for `prove/` (verify), which compares bits, and `bench/`, which compares speeds.
   `checkup/` is the doctor.

Everything but `lockstep.__all__`, `lockstep.testing` and `lockstep.torch_backend` is internal.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import lockstep.handover.cublas_workspace  # noqa: F401 - before anything can be multiplied
from lockstep.errors import LockstepError, PeerLost, PromiseBroken, RankFailed, UsageError, WorldError

if TYPE_CHECKING:
    from lockstep.checkpoint.weights import load_weights
    from lockstep.launch.spawning.spawn import spawn
    from lockstep.run.loop.agreed import Agreed
    from lockstep.run.loop.step import Step
    from lockstep.run.loop.tally import Tally
    from lockstep.run.run import Run
    from lockstep.run.start import finish, init

    __version__: str

_PLACES = {
    "Agreed": "lockstep.run.loop.agreed",
    "Run": "lockstep.run.run",
    "Step": "lockstep.run.loop.step",
    "Tally": "lockstep.run.loop.tally",
    "finish": "lockstep.run.start",
    "init": "lockstep.run.start",
    "load_weights": "lockstep.checkpoint.weights",
    "spawn": "lockstep.launch.spawning.spawn",
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
    if name == "__version__":
        return importlib.import_module("lockstep.cli.version").version()
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
