"""The bits of a commit, a machine or a version of torch in a file, for `verify --save` and `--against`.

JSON with a checksum of itself. Besides hashes it holds the norm of each tensor, which shows how far away others are,
and what the bits depend on. Format version 1.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from samebits.errors import UsageError
from samebits.launcher.trials.trials import Program
from samebits.machine.cores import model_and_instructions
from samebits.machine.regular_file import read_regular
from samebits.protocol.recording import AT_END
from samebits.verify.evidence import End, Evidence, ItemAtStep

FORMAT = "samebits-bits"
VERSION = 1
NAMES = {
    "cpu": "CPU capability",
    "cpu_model": "CPU",
    "batch_size": "batch",
    "python": "Python",
}
"""What a person calls a fact, if not by its name."""
MOST = 1 << 31
"""No file of ours has as many lanes, threads or steps; the checksum of one by hand may be right all the same."""
_CHECKSUM = "sha256_of_the_rest"


@dataclass(frozen=True)
class SavedBits:
    """What was recorded, of which script, under which conditions."""

    script: str
    """The name of the script or module, without its folder."""
    args: tuple[str, ...]
    facts: Mapping[str, Any]
    """What the bits depend on: torch, CPU, lanes, threads, batch, …"""
    steps: int
    evidence: Evidence
    """The evidence of one rank."""

    @property
    def has_lanes(self) -> bool:
        """Whether a script with lanes gave them, not a run of one without our calls."""
        return "lanes" in self.facts

    def encode(self) -> bytes:
        """The text of the file."""
        by_step: dict[int, dict[str, dict[str, str]]] = {}
        for place, value in self.evidence.ranks[0].items():
            by_step.setdefault(place.step, {"items": {}, "norms": {}})["items"][place.item] = value
        for place, norm in self.evidence.norms.items():
            by_step[place.step]["norms"][place.item] = norm.hex()
        body = {
            "script": self.script,
            "args": list(self.args),
            "facts": dict(self.facts),
            "steps": self.steps,
            "reached_its_end": self.evidence.end.reached,
            "recorded": [{"step": _step_word(step), **words} for step, words in by_step.items()],
        }
        return sealed(FORMAT, body)


def sealed(kind: str, body: Mapping[str, Any]) -> bytes:
    """The text of a file of this format, with its checksum."""
    whole = {"format": kind, "version": VERSION, **body}
    return json.dumps({**whole, _CHECKSUM: _checksum(whole)}, indent=1).encode() + b"\n"


def damaged(path: str) -> UsageError:
    """The error of a file that cannot be trusted."""
    return UsageError(
        f"{path} is damaged, or was not written by `samebits verify --save`.", f"Write it again with --save {path}."
    )


UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
"""A hostile file may hold anything, and be nested deeper than json reads."""


def unsealed(text: bytes, path: str, formats: Collection[str] = (FORMAT,)) -> dict[str, Any]:
    """What a file holds whose checksum is right.

    Raises:
        UsageError: when the text is damaged, something else, or of a newer version.
    """
    try:
        body: dict[str, Any] = json.loads(text)
        if body["format"] not in formats:
            raise damaged(path)
        if body["version"] > VERSION:
            raise UsageError(
                f"{path} was written by a newer samebits (format {body['version']}; this one reads format {VERSION}).",
                f"Install that version, or write the file again with --save {path}.",
            )
        if body.pop(_CHECKSUM) != _checksum(body):
            raise damaged(path)
    except UNREADABLE:
        raise damaged(path) from None
    return body


def is_count(value: Any) -> bool:
    """Whether it can be a number of steps, lanes or threads."""
    return type(value) is int and 0 < value < MOST


def bits_from(body: Mapping[str, Any], path: str) -> SavedBits:
    """The inverse of `SavedBits.encode`, of what `unsealed` gave. Raises UsageError."""
    try:
        if not all(map(is_count, (body["facts"].get("lanes", 1), body["facts"]["threads"], body["steps"]))):
            raise damaged(path)
        recorded = {
            ItemAtStep(_step(line["step"]), i): v for line in body["recorded"] for i, v in line["items"].items()
        }
        norms = {
            ItemAtStep(_step(line["step"]), i): float.fromhex(v)
            for line in body["recorded"]
            for i, v in line["norms"].items()
        }
        end = End(over=True, reached=bool(body["reached_its_end"]))
        evidence = Evidence((recorded,), end, norms)
        return SavedBits(str(body["script"]), tuple(body["args"]), body["facts"], int(body["steps"]), evidence)
    except UNREADABLE:
        raise damaged(path) from None


def decode(text: bytes, path: str) -> SavedBits:
    """The inverse of `SavedBits.encode`.

    Raises:
        UsageError: when the text is damaged, something else, or of a newer version.
    """
    return bits_from(unsealed(text, path), path)


def read_saved(path: Path) -> SavedBits:
    """Read what `write_saved` wrote.

    Raises:
        UsageError: when there is no such file, or it cannot be trusted.
    """
    return decode(text_of(path), str(path))


def text_of(path: Path) -> bytes:
    """What is in the file of --against. Raises UsageError."""
    try:
        return read_regular(path)
    except OSError as error:
        fix = f"Write it first: --save {path}." if isinstance(error, FileNotFoundError) else "Check its permissions."
        raise UsageError(f"--against {path} cannot be read: {error.strerror}.", fix) from None


def write_saved(path: Path, text: bytes) -> None:
    """Replace the file as a whole.

    Raises:
        UsageError: when it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(text)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UsageError(
            f"--save {path} cannot be written: {error.strerror}.",
            "Choose a file in a folder that exists and is writable.",
        ) from None


def to_save(program: Program, decided: Mapping[str, Any], evidence: Evidence, steps: int) -> SavedBits:
    """The bits of rank 0 of a run.

    Args:
        program: what was run.
        decided: the run's decided.json.
        evidence: what it recorded.
        steps: how many steps.
    """
    one = Evidence(evidence.ranks[:1], evidence.end, evidence.norms)
    return SavedBits(name_of(program), program.args, facts(decided), steps, one)


def name_of(program: Program) -> str:
    """The name of the script or module, the same on any machine."""
    return program.module if program.module is not None else Path(program.title).name


def facts(decided: Mapping[str, Any]) -> dict[str, Any]:
    """What the bits depend on besides the script and its data, from a run's decided.json and this machine."""
    arithmetic = decided["arithmetic"]
    return {
        **decided["fingerprint"],
        **({} if arithmetic["numerics"] == "portable" else {"cpu_model": model_and_instructions()[0]}),
        "lanes": decided["lanes"],
        "batch_size": decided["batch_size"],
        "seed": decided["seed"],
        "precision": arithmetic["precision"],
        "numerics": arithmetic["numerics"],
    }


def facts_apart(
    there: Mapping[str, Any], here: Mapping[str, Any], words: Sequence[str] = ("there", "here")
) -> list[str]:
    """Each condition that differs, as `torch 2.12.0 there, 2.13.0 here`; `words` say where."""
    return [
        f"{NAMES.get(name, name)} {there.get(name, 'unknown')} {words[0]}, {here.get(name, 'unknown')} {words[1]}"
        for name in dict.fromkeys([*there, *here])
        if there.get(name) != here.get(name)
    ]


class Conditions(Protocol):
    """Under which a file was written."""

    @property
    def args(self) -> tuple[str, ...]: ...

    @property
    def facts(self) -> Mapping[str, Any]: ...


def fact_differences(saved: Conditions, args: Sequence[str], here: Mapping[str, Any]) -> list[str]:
    """The same of a file, and its arguments where they are others than `args`."""
    found = facts_apart(saved.facts, here)
    if list(saved.args) != list(args):
        found.append(f"arguments {_words(saved.args)} there, {_words(args)} here")
    return found


def _words(args: Sequence[str]) -> str:
    return " ".join(args) or "none"


def _step_word(step: int) -> int | str:
    return "end" if step == AT_END else step


def _step(word: int | str) -> int:
    return AT_END if word == "end" else int(word)


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
