"""What `samebits verify` has proved of a script, for the last lines of later runs of it.

    verify, with exit code 0, and run --prove  -> remember    the hash of each file of the script, in the user's cache folder
    run, at its start                          -> recall      are they the same? then the line `bits` says what was proved

The same are: these files, torch, Python, CPU, GPU, all installed packages, what the command line says of strategy and numerics.
Lanes and threads are compared when the run has ended (`Proved.of`). Data are not looked at, nor a module that is imported in
a way that no source shows.

It is a label: whatever goes wrong here is as if nothing had been proved, and ends or delays nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from datetime import date
from functools import cached_property
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

from samebits.launcher.request import LaunchRequest
from samebits.launcher.script_source import all_sources, calls_init, file_has_lanes, source_place
from samebits.machine.cores import model_and_instructions
from samebits.machine.gpus import gpu_names
from samebits.machine.regular_file import read_regular
from samebits.protocol.arithmetic import Arithmetic
from samebits.protocol.claims import Proved
from samebits.protocol.installation import installed
from samebits.protocol.layout.mesh import Form

MOST_PROOFS = 8
"""Of one script under one set of conditions: one for each set of arguments, the newest."""
MOST_FILES = 300
"""The oldest go."""
MOST_BYTES = 1 << 20
NAMES = frozenset(("steps", "ranks", "lanes", "threads", "day", "args", "files"))
"""Of a proof in its file."""
MOST_LETTERS = 80
"""Of arguments, in a line that says more than them."""
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True)
class Sources:
    """A script as it is now.

    Args:
        script: its path, or
        module: its name.
        conditions: strategy and arithmetic, as far as the command line names them, and the device.
    """

    script: Path | None
    module: str | None
    conditions: tuple[Form, Arithmetic, str]

    @classmethod
    def of(cls, run: LaunchRequest) -> Sources:
        conditions = run.computation.form, run.computation.arithmetic, run.placement.device
        return cls(run.entry.script, run.entry.module, conditions)

    @property
    def can_be_remembered(self) -> bool:
        """Whether proofs are kept, and what they are of is known."""
        with suppress(Exception):  # what only labels ends nothing
            return _folder() is not None and bool(self.key)
        return False

    @cached_property
    def key(self) -> str:
        """Of the script's own text under these conditions; empty where it, or the GPU, is not known. Reads one file."""
        place = source_place(self.script, self.module)
        form, arithmetic, device = self.conditions
        gpus = gpu_names(os.environ, 1) if device == "cuda" else ()
        if place is None or (device == "cuda" and not gpus):
            return ""
        machine = [version("torch"), platform.python_version(), *model_and_instructions(), *installed(), *gpus]
        found = hashlib.sha256(json.dumps([astuple(form), astuple(arithmetic), machine]).encode())
        found.update(read_regular(place[0]))
        return found.hexdigest()[:32]

    def files(self) -> dict[str, str]:
        """The hash of each file that the script is made of, by its path from the script; empty where they are too many."""
        with suppress(Exception):  # what only labels ends nothing
            place = source_place(self.script, self.module)
            found = all_sources(*place) if place is not None else {}
            return (
                {os.path.relpath(path, place[0].parent): _hash(text) for path, text in found.items()} if place else {}
            )
        return {}

    def has(self, files: Mapping[str, str]) -> bool:
        """Whether these files are what they were: no import is looked for, so a start waits for nothing."""
        place = source_place(self.script, self.module)
        if place is None or not files:
            return False
        return all(_hash(read_regular(place[0].parent / path)) == found for path, found in files.items())


def with_its_source(request: LaunchRequest) -> LaunchRequest:
    """The request with what its source says: whether it calls `samebits.init`, and what was proved of it."""
    entry, computation = replace(request.entry, calls_init=calls_init(request)), request.computation
    place = source_place(entry.script, entry.module) if entry.call is None else None
    if computation.proved is None and not computation.evidence and place is not None and file_has_lanes(*place):
        sources = Sources.of(request)
        to_prove = _to_prove(request) if sources.can_be_remembered else ""
        computation = replace(computation, proved=recall(sources, entry.args), to_prove=to_prove)
    return replace(request, entry=entry, computation=computation)


def _to_prove(request: LaunchRequest) -> str:
    """The words behind `samebits verify` under whose proof this run falls."""
    computation, placement = request.computation, request.placement
    form, arithmetic = computation.form, computation.arithmetic
    options = {
        "--device": placement.device if placement.device_given else None,
        "--lanes": computation.lanes,
        "--threads": placement.threads if placement.threads_given else None,
        "--strategy": form.strategy,
        "--mesh": form.mesh,
        "--schedule": form.schedule,
        "--precision": arithmetic.precision,
        "--numerics": arithmetic.numerics,
        "--allow": ",".join(arithmetic.allow),
    }
    given = [word for name, value in options.items() if value for word in (name, str(value))]
    script = ["-m", request.title] if request.entry.module is not None else [request.title]
    return " ".join(filter(None, (shlex.join([*given, *script]), _words(request.entry.args))))


def _words(args: Sequence[str]) -> str:
    """Arguments as a shell takes them; dots in place of the last ones where they are many."""
    words = list(map(shlex.quote, args))
    ends = [*accumulate(len(word) + 1 for word in words)]
    fit = sum(end <= MOST_LETTERS for end in ends)
    return " ".join([*words[:fit], *(["..."] if fit < len(words) else [])])


def remember(sources: Sources, files: Mapping[str, str], args: Sequence[str], proved: Proved) -> None:
    """Keep it with this day, in the place of an older proof with these arguments that says no more.

    Args:
        sources: the script.
        files: what it was made of when the proof began; a proof of files that were changed meanwhile is none.
        args: its arguments.
        proved: what was proved.
    """
    folder = _folder()
    with suppress(Exception):  # what only labels ends nothing
        if folder is None or not files or not (key := sources.key) or sources.files() != files:
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = _read(folder, key)
        now = {**asdict(proved), "day": today(), "args": list(args), "files": dict(files)}
        newest = next((one for one in kept if _says_more(one, now)), now)
        others = [one for one in kept if one["args"] != list(args)]
        text = json.dumps([newest, *others[: MOST_PROOFS - 1]])
        beside = folder / f".{key}.{os.getpid()}"
        beside.write_text(text)
        beside.replace(folder / f"{key}.json")
        for old in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-MOST_FILES]:
            old.unlink(missing_ok=True)


def recall(sources: Sources, args: Sequence[str]) -> Proved | None:
    """What was proved with these arguments, else with others, which it then names; None where nothing was."""
    folder = _folder()
    with suppress(Exception):  # what only labels ends nothing
        kept = [] if folder is None else [one for one in _read(folder, sources.key) if sources.has(one["files"])]
        one = next((one for one in kept if one["args"] == list(args)), kept[0] if kept else None)
        if one is not None:
            steps, lanes, threads = (int(one[name]) for name in ("steps", "lanes", "threads"))
            ranks = tuple(int(number) for number in one["ranks"])
            words = "" if one["args"] == list(args) else _words(list(map(str, one["args"]))) or "no arguments"
            return Proved(steps, ranks, lanes, threads, said_day(str(one["day"])), words)
    return None


def today() -> str:
    """As 2026-11-28."""
    return time.strftime("%Y-%m-%d")


def said_day(text: str) -> str:
    """`28 Nov`; `28 Nov 2025` in another year. Raises ValueError for what is no day."""
    day = date.fromisoformat(text)
    return f"{day.day} {MONTHS[day.month - 1]}" + (f" {day.year}" if str(day.year) != today()[:4] else "")


def _says_more(one: Mapping[str, Any], than: Mapping[str, Any]) -> bool:
    """Whether a proof of the same has more ranks or steps, and none less."""
    same = all(one[name] == than[name] for name in ("args", "files", "lanes", "threads"))
    more = one["steps"] - than["steps"], len(one["ranks"]) - len(than["ranks"])
    return same and set(one["ranks"]) >= set(than["ranks"]) and more[0] >= 0 and any(more)


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
    with suppress(OSError, ValueError):  # damaged: another one takes its place
        found = json.loads(path.read_text())
        return (
            [one for one in found if isinstance(one, dict) and one.keys() >= NAMES] if isinstance(found, list) else []
        )
    return []


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]
