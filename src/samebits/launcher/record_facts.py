"""What a run's record says of its command: script, arguments, and the commit it was made from."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from samebits.machine.regular_file import open_regular
from samebits.machine.visible import visible
from samebits.protocol.record.reading import FILE
from samebits.protocol.run_folder import STATES, RunFolder, read_json, runs_folder

PATIENCE_S = 2.0
"""A repository of gigabytes on a slow disk: the record goes without its commit."""


def command_facts(script: str, args: Sequence[str], *, is_module: bool) -> dict[str, Any]:
    """Of a command whose script or module is `script`; no paths but those among the arguments."""
    return {
        "script": script if is_module else Path(script).name,
        "arguments": list(args),
        **commit_of(Path.cwd() if is_module else Path(script).absolute().parent),
    }


def commit_of(folder: Path) -> dict[str, str]:
    """The commit of the repository around `folder`, and a hash of what was changed since; empty where there is none."""
    with suppress(OSError, subprocess.SubprocessError):
        commit = _git(folder, "rev-parse", "HEAD").decode().strip()
        changes = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "HEAD", "--", ".")
        return {"commit": commit, **({"changes": hashlib.sha256(changes).hexdigest()} if changes else {})}
    return {}


def record_text(folder: RunFolder) -> str:
    """What a run has recorded, and how it is checked; for the last lines."""
    states = Path(str(read_json(folder.decided).get("states") or ""))
    place = states.parent if states.name == STATES else folder.path
    try:
        with open_regular(place / FILE) as file:
            steps = sum(line.startswith(b'{"step":') for line in file)
    except OSError:
        return "nothing new: in the last start no rank came to a step of samebits.init()"
    near = os.path.relpath(place)
    words = [str(place) if near.startswith("..") else near]
    if place.resolve().parent != runs_folder(os.environ).resolve():
        # Only there an audit takes the script from the run folder.
        plan = read_json(folder.plan)
        script = [str(plan["script"])] if plan.get("script") else ["-m", str(plan.get("module"))]
        words = [*script[:-1], *words, script[-1], *map(str, plan.get("args") or ())]
    command = visible(shlex.join(words))
    return f"{steps:,} step{'s' * (steps != 1)}; whoever has the script checks them: samebits audit {command}"


def _git(folder: Path, *words: str) -> bytes:
    # No hook, monitor, driver or pager of the user's runs for a label, and nothing is written to the index.
    settings = ("-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false")
    return subprocess.run(
        ["git", "--no-pager", "--no-optional-locks", *settings, *words],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=True,
    ).stdout  # fmt: skip
