"""`samebits checkpoint`: look at saved states, check them, compare two, take the weights out. What its commands do."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from samebits.cli.under_way import screen
from samebits.errors import UsageError
from samebits.launcher.states.description import describe, examine, newest, summary_of
from samebits.launcher.states.places import Found, all_states, described_at, fill, states_at, states_at_url
from samebits.launcher.states.report import show_description, show_differences, show_examined, show_list
from samebits.machine.held_folder import TemporaryFolder
from samebits.machine.visible import visible
from samebits.protocol.run_folder import COPY, runs_folder
from samebits.protocol.url import is_of_one_process, is_url, shown


def list_states(where: str | None, as_json: bool) -> None:
    """Of one run or place, or of all runs."""
    runs = runs_folder(os.environ)
    found = _states_at(where) if where is not None else all_states(runs)
    rows = [row for one in found if (row := described_at(one, partial(summary_of, one))) is not None]
    rows.sort(key=lambda row: (row["run"], row["step"] is None, row["step"] or 0, row["path"]))
    if not rows and not as_json:
        click.echo(f"No states in {visible(where or runs)}.")
    else:
        _print(rows, as_json, show_list)


def show_state(state: str, as_json: bool) -> None:
    """All that the state says of itself."""
    _print(_described(one_state(state)), as_json, show_description)


def verify_states(words: Sequence[str], as_json: bool) -> None:
    """End with 1 where one is damaged."""
    found = dict.fromkeys(one for word in words for one in _at_least_one(word))
    chosen = map(fill, found)
    examined = [record for one in chosen if (record := described_at(one, partial(examine, one))) is not None]
    _print(examined, as_json, show_examined)
    sys.exit(0 if all(one["whole"] for one in examined) else 1)


def compare_states(one: str, other: str, as_json: bool) -> None:
    """End with 1 where they differ."""
    left, right = one_state(one), one_state(other)
    for found in (left, right):
        _described(found)  # which refuses what nobody should read
    compare = _with_torch("samebits.rank.checkpoint.format.comparison").compare
    record = described_at(left, lambda: described_at(right, lambda: compare(left.path, right.path)))
    _print(record, as_json, show_differences)
    sys.exit(0 if record["same"] else 1)


def export_weights(state: str, file: str, model: str | None, force: bool, as_json: bool) -> None:
    """Into `file`, which is replaced only if `force`."""
    if is_url(file):
        problem = f"FILE must be a path, but is {shown(file)}."
        raise UsageError(problem, "Name a file here and copy it there, or call run.save_weights with the URL.")
    found = one_state(state)
    _described(found)
    export_to = _with_torch("samebits.rank.checkpoint.weights.export").export
    _print(described_at(found, lambda: export_to(found.path, Path(file), model, force=force)), as_json, _say_exported)


def _say_exported(done: dict[str, Any], _: Console) -> None:
    click.echo(visible(f"{done['file']}: {done['tensors']} tensors, {done['size_bytes']} bytes"))
    if done["left_out"]:
        click.echo(f"note: not in a safetensors file: {visible(', '.join(done['left_out']))}", err=True)


def one_state(word: str) -> Found:
    """The state that a word names: of a run the newest.

    Raises:
        UsageError: when there is none.
    """
    return fill(newest(_at_least_one(word)))


def _described(found: Found) -> Any:
    return described_at(found, partial(describe, found.path))


def _states_at(word: str) -> list[Found]:
    if not is_url(word):
        return states_at(word, runs_folder(os.environ))
    if is_of_one_process(word):
        raise UsageError(f"{shown(word)} lives in the process that wrote it, not here.", "Name a path or another URL.")
    end_tidily()
    room = click.get_current_context().with_resource(TemporaryFolder(COPY))
    return states_at_url(word, room)


def end_tidily() -> None:
    """Let a signal that would end this process remove its copies first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def _at_least_one(word: str) -> list[Found]:
    found = _states_at(word)
    if not found:
        place = word if word not in ("", ".") else Path.cwd()
        raise UsageError(
            f"{visible(place)} has no states yet.", "Start the run with --save-every, or wait for the first."
        )
    return found


def _with_torch(module: str) -> Any:
    """A part that needs the numbers of tensors. It is loaded by name when its command is called, as commands are."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"This command needs torch, which cannot be imported ({error}).", "Install torch.") from None


def _print(record: Any, as_json: bool, show: Callable[[Any, Console], None]) -> None:
    """What a command found out: as it is, or as tables."""
    if as_json:
        click.echo(json.dumps(record, allow_nan=False))
    else:
        show(record, screen())
