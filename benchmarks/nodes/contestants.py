"""Who starts the ranks of a node: torchrun, or `lockstep run`, with the same words."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PORT = 29500
TORCHRUN, LOCKSTEP = "torchrun", "lockstep run"


@dataclass(frozen=True)
class Contestant:
    """One of them."""

    name: str
    words: tuple[str, ...]

    def command(self, node: int, nnodes: str, address: str, run_id: str, script: tuple[str, ...]) -> list[str]:
        """What starts two ranks on a node."""
        meeting = ["--nnodes", nnodes, "--rdzv-endpoint", f"{address}:{PORT}", "--rdzv-id", run_id]
        ranks = ["--nproc-per-node", "2", "--max-restarts", "3"]
        return [sys.executable, "-m", *self.words, *meeting, "--node-rank", str(node), *ranks, *script]

    def variables(self, key: str) -> Mapping[str, str]:
        """The environment: this checkout, and nothing that belongs to another run."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "LOCKSTEP_"))}
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        return {**own, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "LOCKSTEP_KEY": key}


CONTESTANTS = {
    TORCHRUN: Contestant(TORCHRUN, ("torch.distributed.run", "--rdzv-backend", "c10d")),
    LOCKSTEP: Contestant(LOCKSTEP, ("lockstep", "run")),
}


def new_key() -> str:
    """A secret that the nodes of one run share."""
    return secrets.token_hex(32)
