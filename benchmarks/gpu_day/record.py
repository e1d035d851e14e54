"""What stays of a GPU day: a file of JSON, named after its date and the hardware."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.hardware import Hardware
from benchmarks.gpu_day.outcome import Outcome
from benchmarks.gpu_day.tasks import ROOT

FOLDER = ROOT / "benchmarks" / "gpu"
MOST_BYTES = 1 << 20


def commit() -> str:
    """Of the source that was measured, with a + when it has been changed since; empty where git does not know."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def file_for(hardware: Hardware, now: dt.datetime, folder: Path = FOLDER) -> Path | None:
    """Where the record goes by itself; nowhere for pretended GPUs, about which it would say nothing."""
    return None if hardware.is_pretended else folder / f"{now:%Y-%m-%d}-{hardware.name}.json"


def record(
    hardware: Hardware, outcomes: Sequence[Outcome], now: dt.datetime, seconds: float, commit_named: str = "", **more: Any
) -> dict[str, Any]:  # fmt: skip
    """All of it; `commit_named` where git cannot tell."""
    return {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "commit": commit_named or commit(),
        "hardware": asdict(hardware),
        "seconds": round(seconds, 1),
        **more,
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }


def fitted(told: dict[str, Any], most: int = MOST_BYTES) -> dict[str, Any]:
    """The record with shorter and shorter outputs, then without figures, until it is small enough."""
    for characters in (4000, 1000, 200, 0):
        told = {
            **told,
            "outcomes": [
                {**one, "output": one["output"][-characters:] if characters else ""} for one in told["outcomes"]
            ],
        }
        if len(as_text(told)) <= most:
            return told
    return {**told, "outcomes": [{**one, "figures": {}} for one in told["outcomes"]]}


def as_text(told: dict[str, Any]) -> str:
    """As it lies in the file."""
    return json.dumps(told, indent=1) + "\n"


def write(told: dict[str, Any], file: Path) -> None:
    """Write it as a whole, or not at all. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    new.write_text(as_text(fitted(told)))
    new.replace(file)
