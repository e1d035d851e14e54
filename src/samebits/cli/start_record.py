"""`samebits record`: look at what runs recorded, compare two records, publish one. What its commands do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from samebits.cli.start_checkpoint import end_tidily
from samebits.cli.under_way import screen
from samebits.errors import UsageError
from samebits.machine.visible import visible
from samebits.protocol.run_folder import runs_folder
from samebits.verify.record.comparison import compared
from samebits.verify.record.description import described, read_at, step_of_record
from samebits.verify.record.publishing import Publication
from samebits.verify.record.report import show_comparison, show_published, show_record, show_step


def show_one(where: str, step: int | None, as_json: bool) -> None:
    """End with 1 where the chain breaks, or a step came again otherwise."""
    record = read_at(where, runs_folder(os.environ))
    if step is not None:
        _print(step_of_record(record, step), as_json, show_step)
    else:
        _print(described(record), as_json, show_record)
    sys.exit(1 if record.broken or record.differs is not None else 0)


def compare(one: str, other: str, as_json: bool) -> None:
    """End with 1 where they differ."""
    runs = runs_folder(os.environ)
    found = compared(read_at(one, runs), read_at(other, runs))
    _print(found, as_json, show_comparison)
    sys.exit(0 if found["same"] else 1)


def publish(where: str, folder: str, states: str, redact: bool, as_json: bool) -> None:
    """Into `folder`, which is there completely or not at all."""
    number = None if states == "all" else 0 if states == "none" else _number(states)
    end_tidily()
    publication = Publication(read_at(where, runs_folder(os.environ)), Path(folder), number, redact)
    _print(publication.write(), as_json, show_published)


def _number(states: str) -> int:
    if states.isascii() and states.isdecimal() and 0 < len(states) < 10:
        return int(states)
    raise UsageError(f"--states {visible(states)} cannot be read.", "Write --states none, all, or a number.")


def _print(found: Any, as_json: bool, show: Callable[[Any, Console], None]) -> None:
    """What a command found out: as it is, or as lines and tables."""
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
    else:
        show(found, screen())
