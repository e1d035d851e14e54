"""`samebits record export`: a folder with a record that can be given away, written completely or not at all.

Lines that count, as they are, so that their links hold; a line with the SHA-256 of the files of each whole state; the states
themselves where they are wanted; how to check it all. Nothing is read outside of the record's folder, and no link is followed.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.states.report import size_text
from samebits.machine.held_folder import TemporaryFolder
from samebits.machine.regular_file import open_regular, read_regular
from samebits.machine.visible import visible
from samebits.protocol.installation import VERSION as PACKAGE_VERSION
from samebits.protocol.record.lines import END, RECORD, STATE, VERSION, unlinked
from samebits.protocol.record.reading import FILE, Record
from samebits.protocol.run_folder import STATES
from samebits.protocol.saving import state_name
from samebits.protocol.state_files.flushed import sync
from samebits.protocol.state_files.manifest import DOCUMENTS, NAME
from samebits.protocol.state_files.own_folder import NAMES
from samebits.verify.audit.checked import SavedState, saved_states
from samebits.verify.record.conditions import Json, packages_of
from samebits.verify.record.private import Self, texts_in, why_place, why_private, why_text

README, SUMS = "README.txt", "SHA256SUMS"
REDACTED = "…"
STAGE = "{}.exporting-"
"""Where it is written before it has its name."""
MOST_DOCUMENT = 64 << 20


def myself() -> Self:
    """Whose names are not published."""
    host = socket.gethostname()
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = ""
    return Self(str(Path.home()), user, tuple(dict.fromkeys((host, host.partition(".")[0]))))


@dataclass
class Publication:
    """What goes into the folder, checked before anything is written.

    Args:
        record: of the run.
        folder: where; it must not exist.
        num_states: how many states are copied; None: all.
        redacts: whether arguments are left out.

    Raises:
        UsageError: for what should not become public, or proves nothing.
    """

    record: Record
    folder: Path
    num_states: int | None
    redacts: bool
    shown: str = field(init=False)
    """The folder as it was named."""
    states: Mapping[int, SavedState] = field(init=False)
    """Whole ones, by step; of some of a record that was published before only the hashes are there."""
    copied: Sequence[int] = field(init=False, default=())
    starts: Sequence[Json] = field(init=False)
    left_out: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        record, self.shown = self.record, visible(str(self.folder))
        self.folder = Path(os.path.abspath(self.folder))  # noqa: PTH100 - no link is followed
        name = visible(str(record.path))
        if os.path.lexists(self.folder):
            raise UsageError(f"{self.shown} is there already.", "Name a folder that is not there.")
        if not self.folder.parent.is_dir():
            raise UsageError(f"There is no folder {visible(str(self.folder.parent))}.", "Make it, or name another one.")
        if record.broken:
            raise UsageError(f"{name} proves nothing: {record.broken}.", "Name another record.")
        if not record.lines:
            raise UsageError(f"{name} has no step yet.", "Wait for the run's first step.")
        self.starts = [_redacted(one) if self.redacts else dict(one) for one in record.starts]
        self._check(myself())
        self.states = self._whole_states()
        there = [step for step, state in self.states.items() if state.path is not None]
        self.copied = there if self.num_states is None else _chosen(there, self.num_states)
        self._check_states(myself())
        if record.is_cut:
            self.left_out.append("the last line, which is cut")
        if left := [self.states[step] for step in there if step not in self.copied]:
            self.left_out.append(
                f"the files of {_count(len(left), 'state')}, {size_text(sum(map(_size, left)))}; --states all copies them"
            )

    def _check(self, me: Self) -> None:
        fix = "Give --redact: the arguments become “…”, their hash stays in the conditions."
        for start in self.starts:
            arguments = start.get("arguments", [])
            if arguments != [REDACTED] and (why := why_private(arguments, me)):
                raise UsageError(f"The arguments hold {why}, which would become public.", fix)
            rest = {key: value for key, value in start.items() if key not in ("arguments", "script")}
            if why := next(filter(None, (why_text(one, me) for one in texts_in(rest))), ""):
                raise UsageError(f"A line of a start holds {why}, which would become public.", "Name another record.")
        for _, conditions in self.record.conditions:
            self._check_conditions(conditions, me)

    def _check_conditions(self, conditions: Mapping[str, Any], me: Self) -> None:
        """They are in the chain, so nothing can be left out of them."""
        variables = conditions.get("environment")
        pairs = [f"{name}={value}" for name, value in variables.items()] if isinstance(variables, dict) else []
        rest = (text for key, value in conditions.items() if key != "environment" for text in texts_in(value))
        places = (why_place(text, Self(me.home, "", ())) for text in rest)
        if why := why_private(pairs, me) or next(filter(None, places), ""):
            raise UsageError(
                f"The conditions hold {why}, which would become public, and they cannot be changed in a chain.",
                "Record the run again without it.",
            )

    def _whole_states(self) -> dict[int, SavedState]:
        if (self.record.path.parent / STATES).is_symlink():
            self.left_out.append(f"{STATES}, which is a link")
            return {}
        found, damaged = saved_states(self.record)
        troubles = {step: state.trouble() for step, state in found.items()} | dict(damaged)
        self.left_out += [why for why in troubles.values() if why]
        return {step: state for step, state in found.items() if not troubles[step]}

    def _check_states(self, me: Self) -> None:
        """What a script keeps in its states may be anything."""
        for step in self.copied:
            path = self.states[step].path
            for name in (DOCUMENTS, NAME):
                text = read_regular(Path(str(path)) / name, follow=False, most_bytes=MOST_DOCUMENT).decode(
                    errors="replace"
                )
                if why := _why_document(text, me):
                    raise UsageError(
                        f"{state_name(step)}/{name} holds {why}, which would become public.", "Leave out --states."
                    )

    def lines(self) -> Iterator[bytes]:
        """Of the record, those that count in the order of the chain; then its end, and the states."""
        record = self.record
        yield unlinked({RECORD: VERSION, "samebits": PACKAGE_VERSION})
        yield from map(unlinked, self.starts)
        left = list(record.condition_lines.items())
        for step, line in record.lines.items():
            while left and left[0][0] < step:
                yield left.pop(0)[1]
            yield line
        if record.differs is not None:
            yield unlinked(record.differs)
        if record.end is not None:
            yield unlinked({END: record.end[0], "bits": record.end[1]})
        for step, state in self.states.items():
            yield unlinked({STATE: step, "files": dict(state.files)})

    def write(self) -> Json:
        """Write the folder; what there is to say of it.

        Raises:
            OSError: when it cannot be written. Nothing is left then.
        """
        with TemporaryFolder(STAGE.format(self.folder.name), self.folder.parent) as stage:
            place = stage / "record"
            place.mkdir()
            sums = dict(self._write_into(place))
            text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
            _write(place / SUMS, [text.encode()])
            size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
            for folder in (*(path for path in place.rglob("*") if path.is_dir()), place):
                sync(folder)
            place.rename(self.folder)
            sync(self.folder.parent)
        return {
            "folder": self.shown,
            "files": len(sums) + 1,
            "size_bytes": size,
            "public": self._public(),
            "left_out": self.left_out,
            "check": f"samebits audit {shlex.quote(self.folder.name)} {self._command}",
        }

    def _write_into(self, place: Path) -> Iterator[tuple[str, str]]:
        """The SHA-256 of each file, by its name."""
        yield FILE, _write(place / FILE, (line + b"\n" for line in self.lines()))
        yield README, _write(place / README, [self._readme().encode()])
        for step in self.copied:
            state = self.states[step]
            to = place / STATES / state_name(step)
            to.mkdir(parents=True)
            for name in sorted({*state.files, NAME}):
                if not NAMES.fullmatch(name):
                    raise UsageError(f"The state after step {step} has a file {name!r}.", "Leave out --states.")
                with open_regular(Path(str(state.path)) / name, follow=False) as file:
                    digest = _write(to / name, iter(lambda file=file: file.read(1 << 20), b""))  # type: ignore[misc]
                if digest != state.files.get(name, digest):
                    raise UsageError(f"{state_name(step)}/{name} was changed meanwhile.", "Try again.")
                yield f"{STATES}/{state_name(step)}/{name}", digest

    @property
    def _command(self) -> str:
        """Script and arguments, as somebody else would call them."""
        newest: Mapping[str, Any] = self.starts[-1] if self.starts else {}
        arguments = newest.get("arguments", [])
        words = ["ARGS"] if arguments == [REDACTED] else list(map(shlex.quote, arguments))
        return visible(" ".join([shlex.quote(newest.get("script") or "SCRIPT"), *words]))

    def _public(self) -> dict[str, str]:
        conditions = self.record.conditions[-1][1] if self.record.conditions else {}
        packages, commit = conditions.get("packages"), conditions.get("commit")
        files = conditions.get("files", {})
        return {
            "command": self._command,
            "steps": f"{len(self.record.lines):,}, with their losses and rates, and hashes of their samples",
            "files": f"names and hashes: {', '.join(list(files)[:8])}{f' and {len(files) - 8} more' if len(files) > 8 else ''}"
            if files
            else "none",
            "commit": f"{str(commit)[:12]}" if commit else "none",
            "packages": f"{len(packages_of(packages))} with their versions" if isinstance(packages, list) else "none",
            "machine": visible(conditions.get("cpu_model", "unknown")),
            "states": f"hashes of {len(self.states)}, files of {len(self.copied)}",
        }

    def _readme(self) -> str:
        name, number = self.folder.name, len(self.record.lines)
        return (
            f"The record of a run of {self._command}: {_count(number, 'step')}, written by samebits {PACKAGE_VERSION}.\n\n"
            f"Is each file as it was written?            sha256sum -c {SUMS}\n"
            f"Does the chain of its lines hold?          samebits audit --no-replay {shlex.quote(name)}\n"
            f"Do its steps come again, bit for bit?      samebits audit {shlex.quote(name)} {self._command}\n"
            f"What does it say?                          samebits record show {shlex.quote(name)}\n\n"
            "A record has neither the script nor the data: read the script before you run it. Without a signature of\n"
            f"{SUMS} nothing says who made the record.\n"
        )


def _chosen(steps: Sequence[int], number: int) -> list[int]:
    """So many of them: the first, the last, and what is nearest to as many equal parts between; the last if it is one."""
    if number >= len(steps) or number < 2:
        return list(steps[max(len(steps) - number, 0) :]) if number else []
    part = (steps[-1] - steps[0]) / (number - 1)
    found = {min(steps, key=lambda step: abs(step - steps[0] - part * place)) for place in range(number)}
    return sorted(found)


def _redacted(start: Mapping[str, Any]) -> Json:
    return {**start, **({"arguments": [REDACTED]} if start.get("arguments") else {})}


def _why_document(text: str, me: Self) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "what cannot be read"
    return next(filter(None, (why_place(one, me) for one in texts_in(found))), "")


def _size(state: SavedState) -> int:
    return sum(file.size for file in state.manifest.files.values()) if state.manifest is not None else 0


def _write(path: Path, pieces: Any) -> str:
    """Write and flush to the disk; the SHA-256 of all."""
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"
