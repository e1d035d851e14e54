"""The environment of a process that has pretended GPUs, and of all that it starts."""

from __future__ import annotations

import os
from pathlib import Path

from tests.pretend.build import made

SITE = Path(__file__).parent / "site"
GPUS = 4


def surroundings(gpus: int = GPUS) -> dict[str, str]:
    """Variables for a new process.

    Raises:
        CannotPretend: there is no compiler, or torch is not the tested CPU build.
    """
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "PRETENDED_GPUS": str(gpus), "PRETENDED_GPUS_BUILD": str(made())}
