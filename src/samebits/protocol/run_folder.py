"""The run folder: where a run keeps its settings, journals, logs, failures, metrics and evidence.

One of the two bridges between the launcher and the ranks (the other is the environment). Paths only; the launcher
makes the folder with mode 0700.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from samebits.machine.regular_file import read_regular

RUNS = "samebits-runs"
"""The folder of all run folders, unless another one is named."""
COPY = "samebits-copy-"
"""How a private folder with a copy of a state at a URL begins: in the run folder, or among temporary files."""
RUNS_VARIABLE = "SAMEBITS_RUNS"
"""The variable that names another one, for `samebits.init` and all commands; --log-dir beats it."""
MOST_BYTES = 64 << 20
"""How much of a file with one JSON object is read."""
STATES = "states"
"""In the folder of a run that saves by itself: the states of all its starts."""


def runs_folder(variables: Mapping[str, str]) -> Path:
    """The folder of all run folders, as the environment says."""
    return Path(variables.get(RUNS_VARIABLE) or RUNS)


@dataclass(frozen=True)
class RunFolder:
    """The paths inside one run's folder."""

    path: Path

    def journal(self, rank: int) -> Path:
        """The mapped ring of `rank`, made by the launcher before the rank starts."""
        return self.path / "journal" / f"rank-{rank:05d}.ring"

    def answers(self, rank: int) -> Path:
        """The stacks of `rank` that it wrote when it was asked (`samebits.machine.stacks`)."""
        return self.path / "journal" / f"rank-{rank:05d}.stacks"

    def log(self, rank: int) -> Path:
        """Everything that `rank` wrote to its standard output and error."""
        return self.path / "logs" / f"rank-{rank:05d}.log"

    def failure(self, rank: int) -> Path:
        """The failure record of `rank` (JSON, `samebits.protocol.journal.failure`); absent while nothing failed."""
        return self.path / "failures" / f"rank-{rank:05d}.json"

    def evidence(self, rank: int) -> Path:
        """What `rank` recorded for `samebits verify` (JSON lines)."""
        return self.path / "evidence" / f"rank-{rank:05d}.jsonl"

    def replayed(self, rank: int) -> Path:
        """What `rank` saw in the step that `samebits replay` wants (JSON); absent before its end."""
        return self.path / "evidence" / f"replayed-{rank:05d}.json"

    def ending(self, rank: int) -> Path:
        """How far `rank` came after the last step that it recorded (JSON); absent while steps are missing."""
        return self.path / "evidence" / f"ending-{rank:05d}.json"

    def samples(self, rank: int) -> Path:
        """Which samples the lanes of `rank` were given in each step that `samebits audit` has made (JSON lines)."""
        return self.path / "evidence" / f"samples-{rank:05d}.jsonl"

    def measured(self, rank: int) -> Path:
        """What `rank` measured for `samebits bench` (JSON)."""
        return self.path / "evidence" / f"measured-{rank:05d}.json"

    @property
    def plan(self) -> Path:
        """What the launcher decided (JSON): command, ranks, threads, device, lanes if given."""
        return self.path / "plan.json"

    @property
    def decided(self) -> Path:
        """What rank 0 decided at `samebits.init` and `prepare` (JSON): lanes, batch size, strategy, devices."""
        return self.path / "decided.json"

    @property
    def metrics(self) -> Path:
        """The values of `run.log`, one JSON object per line, written by rank 0."""
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        """What rank 0 wrote when the script ended well (JSON): steps, samples, bits of the parameters."""
        return self.path / "result.json"

    @property
    def stages(self) -> Path:
        """What each stage of a cut model did (JSON, see `samebits.rank.run.ending`)."""
        return self.path / "stages.json"

    @property
    def snapshots(self) -> Path:
        """Why the ranks keep no state in memory (JSON); absent while they do, or may yet."""
        return self.path / "snapshots.json"

    @property
    def unsaved(self) -> Path:
        """What the script keeps itself (JSON): names of what no state holds; absent where there is nothing."""
        return self.path / "unsaved.json"

    @property
    def restarts(self) -> Path:
        """Each restart of all ranks (JSON lines): what was lost, how many ranks resume, and from where."""
        return self.path / "restarts.jsonl"

    @property
    def nodes(self) -> Path:
        """The nodes of each start of the ranks (JSON lines): numbers, hosts, ranks, and which is this one; absent on one node."""
        return self.path / "nodes.jsonl"

    @property
    def findings(self) -> Path:
        """The findings of the run (JSON lines): the name, the ranks, the sentence, and its time."""
        return self.path / "findings.jsonl"

    @property
    def events(self) -> Path:
        """What happened (JSON lines, `samebits.protocol.events`): starts, pace, states, kills, restarts, stalls, the end."""
        return self.path / "events.jsonl"

    @property
    def summary(self) -> Path:
        """The run in numbers (JSON), written at its end: versions, time of each rank, memory, bits."""
        return self.path / "summary.json"

    @property
    def traces(self) -> Path:
        """What the ranks recorded for `--trace`, a file (JSON) for each."""
        return self.path / "traces"

    @property
    def trace(self) -> Path:
        """The steps of `--trace` as Perfetto opens them (JSON)."""
        return self.path / "trace.json"

    @property
    def replicas(self) -> Path:
        """Sums over the parameters of plain scripts' replicas, until they are compared."""
        return self.path / "replicas"

    @property
    def outcome(self) -> Path:
        """How the run ended (JSON): exit code, seconds, the failure block, how each rank ended; absent before."""
        return self.path / "outcome.json"

    def store(self, number: int) -> Path:
        """The file through which the ranks' process groups meet in the `number`-th `samebits.init` of the run."""
        return self.path / f"store-{number}"

    def before(self, restart: int) -> Path:
        """What the ranks left when all of them started again for the `restart`-th time: journals, failures, decisions."""
        return self.path / f"before-restart-{restart}"

    def of_one_start(self) -> list[Path]:
        """What belongs to one start of the ranks; logs and metrics continue when all ranks start again."""
        folders = [self.path / name for name in ("journal", "failures", "evidence", "replicas")]
        files = [self.decided, self.result, self.stages, self.snapshots]
        return [*folders, *files, *sorted(self.path.glob("store-*"))]

    def copies(self) -> list[Path]:
        """Copies of states at URLs that ranks are making, or left when they were killed."""
        return sorted(self.path.glob(f"{COPY}*"))

    def folders(self) -> list[Path]:
        """All folders, parents first."""
        return [self.path, *(self.path / name for name in ("journal", "logs", "failures", "evidence"))]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a run's folder, which may be half written or hostile; empty when there is none."""
    with suppress(OSError, ValueError, RecursionError):
        entry = json.loads(read_regular(path, most_bytes=MOST_BYTES))
        return entry if isinstance(entry, dict) else {}
    return {}


def unsaved(folder: RunFolder, form: Literal["names", "sentences"]) -> list[str]:
    """What no state holds, as the script's ranks reported it."""
    entry = read_json(folder.unsaved).get(form, [])
    return [str(one) for one in entry] if isinstance(entry, list) else []


def make_base(path: Path) -> None:
    """Make a folder for run folders, and those above it, where they are missing; nobody else may write there.

    Raises:
        OSError: when one cannot be made.
    """
    for folder in (*reversed(path.parents), path):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o755)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def make_own(path: Path) -> None:
    """Make a run's own folder, mode 0700, or take the one that is there, unless it is somebody else's.

    It, and a link that leads to it, must belong to this user, or to whose folder it is in: who owns that may replace it anyway.

    Raises:
        OSError: when it cannot be made, or is somebody else's.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        return
    owners = {os.geteuid(), path.parent.stat().st_uid}
    for found in (path.lstat(), path.stat()):
        if not stat.S_ISDIR(found.st_mode) and not stat.S_ISLNK(found.st_mode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        if found.st_uid not in owners:
            raise PermissionError(errno.EPERM, f"it belongs to another user (number {found.st_uid})", str(path))


def write_private(path: Path, text: str) -> None:
    """Write atomically, with mode 0600: a reader sees the whole text or the one before.

    Raises:
        OSError: when it cannot be written; nothing is left of the attempt.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(text)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def add_line(path: Path, entry: Mapping[str, Any]) -> None:
    """Add a line to one of the run's files; a disk that is full loses the record, not the run."""
    with suppress(OSError), open(path, "a", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f"{json.dumps(entry)}\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file with one in each line; half a line at the end is left out."""
    found = []
    with suppress(OSError):
        for line in read_regular(path, most_bytes=MOST_BYTES).decode(errors="replace").splitlines():
            with suppress(ValueError, RecursionError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    found.append(entry)
    return found
