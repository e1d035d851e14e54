"""Run a script under `samebits run` in a test, and count what it leaves behind.

Every process of a run inherits a variable with a value of its own, so a test finds exactly its processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.warm import Process, Server

LIMIT_S = 60.0
MARK = "SAMEBITS_TEST_MARK"


@dataclass(frozen=True)
class Finished:
    """A run that has ended."""

    code: int
    out: str
    err: str
    folder: Path | None
    """The run folder; None when none was made."""

    def log(self, rank: int) -> str:
        assert self.folder is not None
        return (self.folder / "logs" / f"rank-{rank:05d}.log").read_text()

    @property
    def losses(self) -> list[str]:
        """The block of each loss after which all ranks started again, on one line."""
        return [" ".join(block.split()) for block in re.findall(r"^\0*(LOST .*(?:\n  .*)+)", self.err, re.MULTILINE)]

    @property
    def bits(self) -> str:
        """The hash of all weights, from the newest result here: the terminal shows only its beginning."""
        assert self.code == 0, self.err
        assert self.folder is not None
        newest = max(self.folder.parent.glob("**/result.json"), key=os.path.getmtime)
        return str(json.loads(newest.read_text())["bits"])


@dataclass
class Running:
    """A run under way. Its standard output and error are files, so nothing has to be read for it to go on."""

    process: Process
    mark: str
    place: Path
    seen: set[int] = field(default_factory=set)

    @property
    def out(self) -> str:
        return (self.place / "out.txt").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.place / "err.txt").read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait until `text` is in the standard output."""
        until(lambda: text in self.out or self.process.poll() is not None, f"{text!r} in the output")
        assert text in self.out, f"the run ended before it said {text!r}:\n{self.out}\n{self.err}"

    def processes(self) -> list[int]:
        """The run's living processes, the launcher included."""
        alive = marked_processes(self.mark)
        self.seen.update(alive)
        return alive

    def pid_of(self, rank: int) -> int:
        """The process of a rank, as -v shows it."""
        match = re.search(rf"^rank {rank} +pid (\d+)", self.err, re.MULTILINE)
        assert match is not None, self.err
        return int(match.group(1))

    def finish(self) -> Finished:
        """Wait for the launcher's end."""
        try:
            code = self.process.wait(LIMIT_S)
        finally:
            self.clean_up()
        folders = sorted((self.place / "samebits-runs").glob("*"))
        return Finished(code, self.out, self.err, folders[0] if folders else None)

    def clean_up(self) -> None:
        """Kill the launcher, if it still runs; its processes follow."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT_S)


def start(
    place: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    is_cold: bool = False,
    holder: int | None = None,
) -> Running:
    """Start `samebits run OPTIONS` in the folder `place`; where `is_cold`, as a program that imports everything itself.

    `holder` is a process of the host (`tests.support.hosts`) on which it is to be.
    """
    mark = uuid.uuid4().hex
    variables = _variables(mark, env)
    if is_cold or stdin != subprocess.DEVNULL or not server().can_start({**os.environ, **(env or {})}):
        return start_python(place, "-m", "samebits", "run", *options, env=env, stdin=stdin, holder=holder)
    with (place / "out.txt").open("wb") as out, (place / "err.txt").open("wb") as err, Path(os.devnull).open() as null:
        streams = [null.fileno(), out.fileno(), err.fileno()]
        return Running(server().start(["run", *options], place, variables, streams, holder), mark, place)


_servers: list[Server] = []


def server() -> Server:
    """The one of this process; another one where a test's time limit has ended it."""
    if not _servers or _servers[-1].has_ended:
        _servers.append(Server())
    return _servers[-1]


def _variables(mark: str, more: Mapping[str, str] | None) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    return {**own, MARK: mark, **(more or {})}


def start_python(
    place: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    python: str = sys.executable,
    holder: int | None = None,
) -> Running:
    """Start `python ARGUMENTS` in the folder `place`, on the host of `holder` if there is one."""
    mark = uuid.uuid4().hex
    command, variables = [*(within(holder, place) if holder else []), python, *arguments], _variables(mark, env)
    with (place / "out.txt").open("wb") as out, (place / "err.txt").open("wb") as err:
        process = subprocess.Popen(command, cwd=place, env=variables, stdin=stdin, stdout=out, stderr=err)
    return Running(process, mark, place)


def within(holder: int, place: Path) -> list[str]:
    """What to put before a command so that it runs on another process' host (`tests.support.hosts`), in the folder `place`."""
    return ["nsenter", f"--target={holder}", "--net", "--uts", "--ipc", "--mount", f"--wdns={place}", "--"]


@contextlib.contextmanager
def killed_at_the_end(command: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A process whose output the test reads; it does not outlive the test, whatever fails."""
    with subprocess.Popen(command, text=True, **how) as process:
        try:
            yield process
        finally:
            process.kill()


def run_script(
    place: Path, text: str, *options: str, args: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> Finished:
    """Write `text` as script.py into `place` and run it with `options` to its end."""
    return start(place, *options, write_script(place, text), *args, env=env).finish()


def write_script(place: Path, text: str, name: str = "script.py") -> str:
    """Write a script; its name as given on the command line."""
    (place / name).write_text(textwrap.dedent(text))
    return name


def said(run: Running | Finished, label: str) -> list[str]:
    """The launcher's lines with this label; of a block the whole sentence."""
    found = re.findall(rf"^{label} +(.*)(?:\n  where .*)?(?:\n  why     (.*(?:\n {{10}}.*)*))?", run.err, re.MULTILINE)
    return ["; ".join(filter(None, [first, *re.split(r"\n {10}", why)])) for first, why in found]


def marked_processes(mark: str) -> list[int]:
    """The living processes that were started with this mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> float:
    """Wait until `condition()`; return the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s, f"waited {limit_s} s for: {what}"
        select.select([], [], [], 0.01)
    return time.monotonic() - began


def stretched(limit_s: float) -> float:
    """A limit in seconds, five times as long on a machine that has more to do than it has cores."""
    return limit_s * (5 if os.getloadavg()[0] > (os.cpu_count() or 1) else 1)


def listening_addresses(processes: list[int]) -> set[str]:
    """The addresses (hexadecimal, as the kernel lists them) on which these processes accept connections."""
    return {place.split()[1].partition(":")[0] for place in open_ports(processes) if place.startswith("tcp")}


def open_ports(processes: list[int]) -> set[str]:
    """`tcp ADDRESS:PORT` or `udp ADDRESS:PORT`, in hexadecimal, wherever these processes would receive from anybody."""
    found = set()
    for process in processes:
        sockets = set()
        for descriptor in _entries(Path(f"/proc/{process}/fd")):
            with contextlib.suppress(OSError):
                sockets.add(descriptor.readlink().name)
        for table in ("tcp", "tcp6", "udp", "udp6"):  # those of its own network
            for line in _lines(Path(f"/proc/{process}/net/{table}"))[1:]:
                fields = line.split()
                if (fields[3] == "0A" or table.startswith("udp")) and f"socket:[{fields[9]}]" in sockets:
                    found.add(f"{table} {fields[1]}")
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def kill(process: int) -> None:
    """As `kill -9`."""
    os.kill(process, signal.SIGKILL)
