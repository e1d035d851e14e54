"""What a machine has, as far as the tasks need to know it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

ASK_S = 180.0
NO_GPU = (
    "No GPU that the installed torch can use was found here: nothing to try (`samebits doctor` says what is missing)."
)


@dataclass(frozen=True)
class Hardware:
    """GPUs, versions and tools."""

    gpus: Sequence[str]
    """Their names."""
    memory_bytes: int
    """Of the first one."""
    torch: str
    cuda: str
    """The version that torch was built for."""
    driver: str
    """As the kernel names it; empty where it does not."""
    python: str
    no_compiled: str
    """Why samebits goes without its compiled part; empty where it has it."""
    tools: Sequence[str]
    """Modules and programs that some tasks need."""
    is_pretended: bool
    """Whether the GPUs are those of the tests, in host memory."""

    @property
    def name(self) -> str:
        """For a file: `1-nvidia-h100-80gb-hbm3`, `8-nvidia-a100`."""
        kinds = list(dict.fromkeys(self.gpus))
        return re.sub("[^a-z0-9]+", "-", f"{len(self.gpus)} {' '.join(kinds)}".lower()).strip("-")

    def __str__(self) -> str:
        kinds = ", ".join(dict.fromkeys(self.gpus))
        inside = f"without its compiled part ({self.no_compiled})" if self.no_compiled else "with its compiled part"
        return (
            f"{len(self.gpus)} x {kinds}, {self.memory_bytes / (1 << 30):.0f} GiB; torch {self.torch} for CUDA {self.cuda}, "
            f"Python {self.python}; samebits {inside}"
        )


def look(variables: Mapping[str, str]) -> Hardware | str:
    """Ask; or why that could not be asked, in a sentence."""
    words = [sys.executable, "-m", "benchmarks.gpu_day.programs.looking"]
    try:
        done = subprocess.run(words, env={**variables}, capture_output=True, text=True, timeout=ASK_S, check=False)
    except subprocess.TimeoutExpired:
        return f"torch did not say within {ASK_S:.0f} s which GPUs are here: `nvidia-smi` may know why."
    return read(done.stdout, done.stderr)


def read(out: str, err: str) -> Hardware | str:
    """What the asked process printed; or why it could not, in a sentence."""
    try:
        told = json.loads(out.strip().splitlines()[-1])
        found = Hardware(**{field.name: told[field.name] for field in fields(Hardware)})
    except (ValueError, LookupError, TypeError):
        why = (err.strip().splitlines() or ["it printed nothing"])[-1]
        return f"What is here could not be asked: {why.rstrip('.')}. samebits and what it needs must be importable (pip install .)."
    return found if found.gpus else str(told.get("why_none") or NO_GPU)
