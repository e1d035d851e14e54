"""One run of a script to which a fault happens: started, watched, ended if it does not end, and looked after."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.catalogue import SAMPLE, STEP, Row
from benchmarks.faults.outcome import Notes, Outcome, Said, first_said, names
from benchmarks.faults.samples import NOTES
from samebits.testing import faults
from samebits.testing.faults.acts import remove_control_groups

ROOT = Path(__file__).parents[2]
SAMEBITS, TORCHRUN = "samebits", "torchrun + DDP"
MARK = "FAULTS_TRIAL"
PATIENCE_S = {SAMEBITS: 60.0, TORCHRUN: 40.0}
"""After a fault, until the run is ended from here."""
START_S = 60.0
CACHE = "torchinductor_"
"""How torch calls a folder that it means to keep."""
TO_END_S = 5.0


@dataclass
class Trial:
    """One of them.

    Args:
        row: the fault; without its effect where `is_quiet`.
        side: SAMEBITS or TORCHRUN.
        ranks: on how many.
        quiet: what an undisturbed run noted; None: this is one.
    """

    row: Row
    side: str
    ranks: int
    quiet: Notes | None = None
    place: Path = field(init=False)
    _lines: list[Said] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self) -> tuple[Outcome, Notes]:
        """Start it, and return what came of it."""
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            self.place = Path(folder)
            for name in ("notes", "fired", "temporary"):
                (self.place / name).mkdir()
            process = self._start()
            try:
                ended_s, fired_s = self._watch(process)
                code, lines = (
                    process.poll(),
                    tuple(self._lines),
                )  # what it says when it is ended from here does not count
                self._end(process)
                left = self._left()
                return self._outcome(fired_s, lines, code if ended_s is not None else None, left), self._notes()
            finally:
                self._remove()

    # What is started

    def _command(self) -> list[str]:
        is_plain = self.row.is_plain or self.side == TORCHRUN
        script = str(ROOT / "benchmarks" / "faults" / ("ddp_training.py" if is_plain else "training.py"))
        arguments = list(self.row.arguments) if is_plain else []
        if self.side == TORCHRUN:
            words = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
        else:
            words = ["samebits", "run", "-n", str(self.ranks), *self.row.options]
        command = [sys.executable, "-m", *words, script, *arguments]
        if not self.row.unshare:
            return command
        shell = f'{self.row.before} && exec "$@"'
        return ["unshare", f"--{self.row.unshare}", "sh", "-c", shell, "sh", *command]

    @property
    def _plan(self) -> str:
        if self.quiet is None:
            return ""
        numbers = self.quiet.samples.get((STEP, 1), [0])
        return self.row.fault.replace(SAMPLE, f"sample={numbers[-1]}")

    def _start(self) -> subprocess.Popen[bytes]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "SAMEBITS_"))}
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
        own |= {MARK: self._mark, NOTES: str(self.place / "notes"), "TMPDIR": str(self.place / "temporary")}
        own |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **faults.variables(self._plan, self.place / "fired")}
        process = subprocess.Popen(
            self._command(), cwd=self.place, env=own, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return process

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(Said(time.monotonic(), line.decode(errors="replace").rstrip()))

    # What happens to it

    def _watch(self, process: subprocess.Popen[bytes]) -> tuple[float | None, float]:
        """Wait for its end, or for the end of patience; when it ended, and when the fault happened."""
        began, fired_s = time.monotonic(), 0.0
        while process.poll() is None:
            time.sleep(0.02)
            if not fired_s and self._has_begun():
                if self.quiet is not None and not self.row.fault:
                    process.kill()
                fired_s = self._fired_s()
            limit_s = fired_s + PATIENCE_S[self.side] if fired_s else began + START_S
            if time.monotonic() > limit_s:
                return None, fired_s
            self._seen.update(self._processes() if int(time.monotonic() * 50) % 25 == 0 else ())
        return time.monotonic(), fired_s or self._fired_s()

    def _has_begun(self) -> bool:
        """Whether the fault has happened, or its step has come where this program is the fault."""
        if self.row.fault or self.quiet is None:
            return bool(self.quiet and faults.fired(self.place / "fired"))
        return any(step >= STEP for _, step in self._notes().steps)

    def _fired_s(self) -> float:
        events = faults.fired(self.place / "fired")
        return events[0].monotonic_s if events else time.monotonic()

    def _notes(self) -> Notes:
        files = (self.place / "notes").glob("rank-*.txt")
        return Notes.read({int(file.stem.removeprefix("rank-")): _whole_lines(file) for file in files})

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End it as an operator would: asked to, and killed when it does not."""
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(TO_END_S)
            process.kill()
        process.wait()

    # What is left

    def _processes(self) -> list[int]:
        return marked(f"{MARK}={self._mark}")

    def _left(self) -> tuple[str, ...]:
        """After a second, in which whoever hears of the end may end too."""
        until = time.monotonic() + 1.0
        while (left := self._processes()) and time.monotonic() < until:
            time.sleep(0.05)
        self._seen.update(left)
        numbers = {str(pid) for pid in self._seen}
        memory = [each.name for each in Path("/dev/shm").iterdir() if numbers & set(re.split(r"\D+", each.name))]
        temporary = [each.name for each in (self.place / "temporary").iterdir() if not each.name.startswith(CACHE)]
        return tuple(_counted("process", left) + _counted("/dev/shm file", memory) + _counted("temp file", temporary))

    def _remove(self) -> None:
        for pid in self._processes():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        _wait_for(lambda: not self._processes())
        for event in faults.fired(self.place / "fired"):
            remove_control_groups(event.pid)
        numbers = {str(pid) for pid in self._seen}
        for file in Path("/dev/shm").iterdir():
            if file.is_file() and file.name.startswith("torch_") and numbers & set(file.name.split("_")):
                file.unlink(missing_ok=True)

    # What came of it

    def _outcome(self, fired_s: float, lines: Sequence[Said], code: int | None, left: tuple[str, ...]) -> Outcome:
        notes = self._notes()
        said = first_said(lines, fired_s) if self.quiet is not None else None
        happened = self.quiet is None or not self.row.fault or bool(faults.fired(self.place / "fired"))
        again_s = notes.next_step_s(fired_s, STEP)
        through = bool(notes.bits)
        rank, line = names(lines, fired_s)
        return Outcome(
            title=self.row.title,
            goal=self.row.goal,
            side=self.side,
            ranks=self.ranks,
            said=said.text.replace(f"{self.place}/", "").strip() if said is not None else "",
            said_after_s=said.at_s - fired_s if said is not None else None,
            names_rank=rank,
            names_line=line,
            recovered_after_s=again_s - fired_s if through and again_s is not None else None,
            lost_steps=notes.computed_again if through else None,
            samples_once=notes.each_once if through else None,
            same_bits=notes.bits == self.quiet.bits if through and self.quiet is not None else None,
            exit_code=code,
            left=left,
            trouble="" if happened else "the fault did not happen",
        )


def _whole_lines(file: Path) -> str:
    text = file.read_text()
    return text[: text.rfind("\n") + 1]


def _counted(what: str, found: Iterable[object]) -> list[str]:
    number = len(list(found))
    plural = "processes" if what == "process" else f"{what}s"
    return [f"{number} {what if number == 1 else plural}"] if number else []


def marked(wanted: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if wanted.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def _wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + TO_END_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
