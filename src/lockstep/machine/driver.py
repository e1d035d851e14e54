"""NVIDIA's driver: its version, and whether it is new enough for what torch was built for."""

from __future__ import annotations

import re
from pathlib import Path

VERSION_FILE = Path("/proc/driver/nvidia/version")
OLDEST = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
"""By major version of CUDA, the oldest Linux driver (NVIDIA's "CUDA Compatibility", minor version compatibility)."""


def read_driver(file: Path = VERSION_FILE) -> str:
    """`535.104.05`; empty without a driver."""
    try:
        return parse_driver(file.read_text())
    except OSError:
        return ""


def parse_driver(text: str) -> str:
    """The version in the text of /proc/driver/nvidia/version."""
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match.group(1) if match else ""


def newer_driver(driver: str, cuda: str) -> str:
    """The oldest version that would do, `525.60`, where this one is older; empty where it fits or nobody can tell.

    Args:
        driver: its version, or empty.
        cuda: the version that torch was built for, `12.8`; empty if for none.
    """
    oldest = OLDEST.get(int(cuda.partition(".")[0])) if cuda[:1].isdigit() else None
    has = tuple(int(part) for part in driver.split(".")[:2]) if driver else ()
    return f"{oldest[0]}.{oldest[1]}" if oldest is not None and has and has < oldest else ""
