"""What `samebits verify` has proved of a script, for the last lines of later runs of it.

    verify, with exit code 0  -> remember    a file for these sources under these conditions, in the user's cache folder
    run, at its start         -> recall      what was proved; the last lines say it with its day

It is a label: whatever goes wrong here is as if nothing had been proved, and ends or delays nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from samebits.launcher.request import LaunchRequest
from samebits.launcher.script_source import calls_init, source_place, sources_of
from samebits.machine.cores import model_and_instructions
from samebits.protocol.arithmetic import Arithmetic
from samebits.protocol.claims import Proved
from samebits.protocol.layout.mesh import Form

MOST_PROOFS = 8
"""Of one script under one set of conditions: one for each set of arguments, the newest."""
MOST_FILES = 300
"""The oldest go."""
MOST_BYTES = 1 << 16


def key_of(script: Path | None, module: str | None, conditions: tuple[Form, Arithmetic, str]) -> str:
    """Of these sources under these conditions; empty where the script's source cannot be found.

    Args:
        script: its path, or
        module: its name.
        conditions: strategy, arithmetic and device, as far as the command line names them.
    """
    place = source_place(script, module)
    if place is None:
        return ""
    form, arithmetic, device = conditions
    found = hashlib.sha256()
    for source in sources_of(*place):
        found.update(hashlib.sha256(source).digest())
    machine = version("torch"), platform.python_version(), *model_and_instructions()
    found.update(json.dumps([astuple(form), astuple(arithmetic), device, machine]).encode())
    return found.hexdigest()[:32]


def with_its_source(request: LaunchRequest) -> LaunchRequest:
    """The request with what its source says: whether it calls `samebits.init`, and what was proved of it."""
    entry, computation = replace(request.entry, calls_init=calls_init(request)), request.computation
    if computation.proved is None and not computation.evidence and entry.calls_init and entry.call is None:
        device = request.placement.device if request.placement.device_given else ""
        with suppress(Exception):  # what only labels ends no run
            key = key_of(entry.script, entry.module, (computation.form, computation.arithmetic, device))
            computation = replace(computation, proved=recall(key, entry.args))
    return replace(request, entry=entry, computation=computation)


def remember(key: str, args: Sequence[str], proved: Proved) -> None:
    """Keep it, in the place of an older proof with these arguments."""
    folder = _folder()
    if folder is None or not key:
        return
    with suppress(OSError, ValueError, KeyError, TypeError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = [one for one in _read(folder, key) if one["args"] != list(args)][: MOST_PROOFS - 1]
        text = json.dumps([{**asdict(proved), "args": list(args)}, *kept])
        beside = folder / f".{key}.{os.getpid()}"
        beside.write_text(text)
        beside.replace(folder / f"{key}.json")
        for old in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-MOST_FILES]:
            old.unlink(missing_ok=True)


def recall(key: str, args: Sequence[str]) -> Proved | None:
    """What was proved with these arguments, else with others, which it then names; None where nothing was."""
    folder = _folder()
    if folder is None or not key:
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = _read(folder, key)
        one = next((one for one in kept if one["args"] == list(args)), kept[0] if kept else None)
        if one is not None:
            steps, lanes, threads = (int(one[name]) for name in ("steps", "lanes", "threads"))
            ranks = tuple(int(number) for number in one["ranks"])
            words = "" if one["args"] == list(args) else " ".join(map(str, one["args"])) or "no arguments"
            return Proved(steps, ranks, lanes, threads, str(one["day"]), words)
    return None


def today() -> str:
    """As 2026-11-28."""
    return time.strftime("%Y-%m-%d")


def _folder() -> Path | None:
    """Where proofs are kept; None where they are not: `SAMEBITS_PROOFS=off`, else a folder."""
    named = os.environ.get("SAMEBITS_PROOFS", "")
    if named == "off":
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else cache / "samebits" / "proofs"


def _read(folder: Path, key: str) -> list[Mapping[str, Any]]:
    path = folder / f"{key}.json"
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        return []
    found = json.loads(path.read_text())
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
