"""The NVIDIA driver against the CUDA that torch was built for."""

from __future__ import annotations

import re
from pathlib import Path

from lockstep.checkup.row import Row, note, ok, problem
from lockstep.checkup.torch_facts import TorchFacts

DRIVER_VERSION = Path("/proc/driver/nvidia/version")
OLDEST_DRIVER = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
"""For each major version of CUDA the oldest Linux driver (NVIDIA's "CUDA Compatibility", minor version compatibility)."""


def read_driver(file: Path = DRIVER_VERSION) -> str:
    """`535.104.05`; empty without a driver."""
    try:
        return parse_driver(file.read_text())
    except OSError:
        return ""


def parse_driver(text: str) -> str:
    """The version in the text of /proc/driver/nvidia/version."""
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match.group(1) if match else ""


def driver_row(driver: str, gpus: int, facts: TorchFacts) -> Row:
    """Whether driver and wheel fit.

    Args:
        driver: its version, or empty.
        gpus: devices that this process may use, counted without torch.
        facts: torch's.
    """
    if not driver and not gpus:
        if facts.built_for.startswith("cuda"):
            return note("driver", "no NVIDIA driver here; torch was built for CUDA", "Runs use the CPU.")
        return ok("driver", "no NVIDIA driver, no GPU; runs use the CPU")
    name = f"NVIDIA {driver}" if driver else "NVIDIA, version unknown"
    return ok("driver", name) if facts.error else _with_wheel(name, driver, facts)


def _with_wheel(name: str, driver: str, facts: TorchFacts) -> Row:
    if not facts.built_for:
        return note(
            "driver",
            f"{name}, but this torch is a CPU build: the GPUs stay unused",
            "Install the CUDA wheel: pip install torch --index-url https://download.pytorch.org/whl/cu128",
        )
    text = f"{name}, torch for {facts.built_for}"
    wheel = re.match(r"cuda (\d+)", facts.built_for)
    oldest = OLDEST_DRIVER.get(int(wheel.group(1))) if wheel else None
    has = tuple(int(part) for part in driver.split(".")[:2]) if driver else ()
    if oldest is not None and has and has < oldest:
        return problem(
            "driver",
            f"{text}: the driver is too old",
            f"Update it to {oldest[0]}.{oldest[1]} or newer, or install a torch for an older CUDA.",
        )
    if facts.cuda_error:
        return problem("driver", f"{text}, but: {facts.cuda_error}", "Until then start with --device cpu.")
    return ok("driver", text)
