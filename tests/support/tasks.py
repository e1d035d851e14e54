"""What tasks of srun and mpirun do in tests, and what one rank alone finds."""

from __future__ import annotations

import json
from pathlib import Path

from tests.scripts.task_text import TASK
from tests.support.launching import run_script


def read(place: Path) -> list[dict[str, object]]:
    """What each rank wrote."""
    return [json.loads(path.read_text()) for path in sorted(place.glob("rank-*.json"))]


def bits_of_one_rank(place: Path) -> str:
    """Run the script on one rank in this folder."""
    ended = run_script(place, TASK, "-n", "1")
    assert ended.code == 0, ended.err
    return str(read(place)[0]["bits"])
