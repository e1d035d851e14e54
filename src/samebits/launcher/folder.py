"""The run folder from the launcher's side: a free name, the folders (0700), the journals (0600), the plan."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from samebits.errors import EnvironmentFailure, UsageError
from samebits.launcher.request import LaunchRequest
from samebits.machine.processes import began_ticks
from samebits.protocol.journal.ring import make_ring
from samebits.protocol.meeting_place import Restart
from samebits.protocol.run_folder import STATES, RunFolder, make_base, make_own
from samebits.protocol.saving import check_name


def reserve_run_folder(base: Path, name: str | None, title: str, now: datetime) -> Path:
    """Make an empty folder of mode 0700 in `base` that no other run has; two runs at once get two.

    Args:
        base: the folder of all runs; made if it is missing.
        name: what the user chose, or None for `20261120-055300-train`, with a number appended if that is taken.
        title: the script or module.
        now: the time for the name.

    Raises:
        UsageError: when the chosen name is taken or cannot name a folder, or nothing can be made in `base`.
    """
    if name is not None:
        check_name(name)
    try:
        make_base(base)
        for path in [base / name] if name is not None else _names(base, title, now):
            # `mkdir` decides between two runs that start at once.
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                return path
    except OSError as error:
        raise UsageError(
            f"No run folder can be created in {base}: {error.strerror}.", "Choose another --log-dir."
        ) from None
    resumes = (base / str(name) / STATES).is_dir()
    fix = (
        "Choose another --name, or add --save-every to resume from its states." if resumes else "Choose another --name."
    )
    raise UsageError(f"A run named {name} already exists ({base / str(name)}).", fix)


def _names(base: Path, title: str, now: datetime) -> Iterator[Path]:
    stem = Path(title).stem if title.endswith(".py") else title.rpartition("/")[2]
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in stem)[:80] or "run"
    first = base / f"{now:%Y%m%d-%H%M%S}-{plain}"
    yield first
    for number in count(2):
        yield first.with_name(f"{first.name}-{number}")


def remove_run_folder(request: LaunchRequest) -> None:
    """Remove the folder of a run that never began."""
    shutil.rmtree(request.output.run_folder, ignore_errors=True)


def make_run_folder(request: LaunchRequest) -> RunFolder:
    """Make the folder of the run with its journals and plan; mode 0700, files 0600.

    Raises:
        UsageError: when it cannot be made; nothing of it is left.
    """
    folder, is_own = RunFolder(request.output.run_folder), False
    try:
        request.output.run_folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_own(request.output.run_folder)
        is_own = True
        for path in folder.folders()[1:]:
            path.mkdir(mode=0o700)
        if request.nodes.place.is_one_node:
            make_rank_files(request)
        create_private(folder.plan, json.dumps(plan(request), indent=1) + "\n")
    except OSError as error:
        # Only a folder that was empty, or was not there, may be removed.
        if is_own:
            shutil.rmtree(request.output.run_folder, ignore_errors=True)
        raise UsageError(
            f"The run folder {request.output.run_folder} cannot be created: {error.strerror}.",
            "Make room there, or choose another --log-dir.",
        ) from None
    return folder


def make_rank_files(request: LaunchRequest) -> None:
    """Make the journals of the ranks, and their logs if they have none. Raises OSError."""
    folder = RunFolder(request.output.run_folder)
    for rank in request.numbers:
        make_ring(folder.journal(rank), rank)
        with suppress(FileExistsError):
            create_private(folder.log(rank), "")


def renew_run_folder(request: LaunchRequest) -> Restart:
    """Put aside what the ranks left that have ended, so that nobody takes it for the next ranks'.

    Returns:
        The next start of the ranks; how often that may happen stays the same.

    Raises:
        EnvironmentFailure: when files cannot be moved or made.
    """
    folder, number = RunFolder(request.output.run_folder), request.restart.number + 1
    aside = folder.before(number)
    try:
        aside.mkdir(mode=0o700)
        for path in folder.of_one_start():
            with suppress(FileNotFoundError):
                path.rename(aside / path.name)
        for path in folder.folders():
            make_own(path)
        if request.nodes.place.is_one_node:
            make_rank_files(request)
    except OSError as error:
        raise EnvironmentFailure(
            f"The run folder {request.output.run_folder} cannot be used again: {error.strerror}."
        ) from None
    size = folder.metrics.stat().st_size if folder.metrics.exists() else 0
    return Restart(number, request.restart.most, size)


def remove_copies(folder: RunFolder) -> None:
    """Remove the copies of states at URLs that ranks left who were killed while they made them; no rank may live."""
    for path in folder.copies():
        shutil.rmtree(path, ignore_errors=True)


def plan(request: LaunchRequest) -> dict[str, Any]:
    """What the launcher decided, for plan.json."""
    return {
        "script": str(request.entry.script) if request.entry.script is not None else None,
        "module": request.entry.module,
        "function": request.entry.call.name if request.entry.call is not None else None,
        "args": list(request.entry.args),
        "folder": str(Path.cwd()),
        "ranks": request.placement.ranks,
        "device": request.placement.device,
        "threads": request.placement.threads,
        "lanes": request.computation.lanes,
        "precision": request.computation.arithmetic.precision,
        "numerics": request.computation.arithmetic.numerics,
        "allow": list(request.computation.arithmetic.allow),
        "start_method": "spawn" if request.placement.spawns else "fork",
        **request.computation.course.as_json(),
        "recover": request.recovery.recover,
        "shrinks": request.recovery.shrinks,
        "max_restarts": request.recovery.max_restarts,
        "nodes": [request.nodes.place.least, request.nodes.place.most],
        "why": request.placement.why,
        "launcher": [os.getpid(), began_ticks(os.getpid())],
    }


def create_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
