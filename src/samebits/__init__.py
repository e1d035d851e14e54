"""PyTorch, any number of processes, even if some of them die: the same weights, to the last bit.

How to read this package: the first folder says the process.

1. `cli/` reads a command. `launcher/` starts, watches and recovers the ranks; it is plain Python and never imports torch.
2. `protocol/` is what the launcher and its ranks agree on: layouts, the environment, run folders, journals, state files.
3. `rank/` is the inside of a rank: `start/` gets to the script's first line, `init/` joins the ranks, `run/` walks through
   steps and lanes, `data/` fetches samples, `strategy/` collects gradients, `transport/` adds them up in the tree's order,
   `process_group/` is what torch.distributed sees of it, `checkpoint/` is what outlives the run, `checks/` what every run
   watches, `recording/` what `verify` and `bench` record.
4. `verify/` and `bench/` run a script several times and compare bits, or speeds.
5. `machine/` is what this computer has, and knows no run. `testing/` is the public test kit.

Everything but `samebits.__all__`, `samebits.testing` and `samebits.torch_backend` is internal.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import samebits.protocol.late_settings  # noqa: F401 - before anything can be multiplied
from samebits.errors import (
    EnvironmentFailure,
    InternalError,
    PeerLost,
    RankFailed,
    SamebitsError,
    UsageError,
)

if TYPE_CHECKING:
    from samebits.launcher.spawn.spawn import spawn
    from samebits.rank.checkpoint.weights.load import load_weights
    from samebits.rank.position.tally import Agreed, Tally
    from samebits.rank.run.loop.step import Step
    from samebits.rank.run.run import Run
    from samebits.rank.run.start import finish, init

    __version__: str

_FILE = __file__
"""What `samebits` and the ranks compare: another package may have put an `__init__.py` of its own over this one."""
_PLACES = {
    "Agreed": "samebits.rank.position.tally",
    "Run": "samebits.rank.run.run",
    "Step": "samebits.rank.run.loop.step",
    "Tally": "samebits.rank.position.tally",
    "finish": "samebits.rank.run.start",
    "init": "samebits.rank.run.start",
    "load_weights": "samebits.rank.checkpoint.weights.load",
    "spawn": "samebits.launcher.spawn.spawn",
}

__all__ = [
    "Agreed",
    "EnvironmentFailure",
    "InternalError",
    "PeerLost",
    "RankFailed",
    "Run",
    "SamebitsError",
    "Step",
    "Tally",
    "UsageError",
    "__version__",
    "finish",
    "init",
    "load_weights",
    "spawn",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a name of the facade when it is first used, so that `import samebits` alone does not import torch."""
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    if name == "__version__":
        return importlib.import_module("samebits.protocol.installation").VERSION
    raise AttributeError(f"module 'samebits' has no attribute {name!r}")
