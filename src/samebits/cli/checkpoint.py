"""`samebits checkpoint`: look at saved states, check them, compare two, take the weights out."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
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

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
WHERE = "\b\n{} is a state's folder, or a run's name or folder: {}.\nEach may be a URL: s3://bucket/runs/exp1."
STATE = WHERE.format("STATE", "its newest state")
EPILOG = """\b
Examples:
  samebits checkpoint ls                                  the states of all named runs
  samebits checkpoint show exp1                           the newest state of a run
  samebits checkpoint verify exp1                         read every byte of its states
  samebits checkpoint diff exp1 exp2                      where do the newest two differ?
  samebits checkpoint export exp1 net.safetensors         the weights as one file

\b
A state is a folder: samebits-runs/exp1/states/step-00000500, or what
run.save_state was given. ls, show and verify need no torch.

\b
Exit code: 0; 1 when a state is damaged (verify) or two differ (diff); 2 for a
mistake, or for a state that cannot be read."""


@click.group(epilog=EPILOG, context_settings=SETTINGS)
def checkpoint() -> None:
    """Look at saved states: list, show, verify, compare, export the weights."""


def _command(name: str, *lines: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command with --json, and paragraphs below its help."""

    def made(function: Callable[..., None]) -> click.Command:
        with_json = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")(function)
        return checkpoint.command(name, context_settings=SETTINGS, epilog="\n\n\b\n".join(lines))(with_json)

    return made


@_command(
    "ls",
    WHERE.format("WHERE", "all its states"),
    "Without it: the states of every run below samebits-runs, or below the folder\nthat SAMEBITS_RUNS names.",
    "Exit code: 0; 2 when WHERE is none of these.",
)
@click.argument("where", required=False)
def ls(where: str | None, as_json: bool) -> None:
    """List states: step, epoch, time, size, hash, whether files are missing."""
    runs = runs_folder(os.environ)
    found = _states_at(where) if where is not None else all_states(runs)
    rows = [row for one in found if (row := described_at(one, partial(summary_of, one))) is not None]
    rows.sort(key=lambda row: (row["run"], row["step"] is None, row["step"] or 0, row["path"]))
    if not rows and not as_json:
        click.echo(f"No states in {visible(where or runs)}.")
    else:
        _print(rows, as_json, show_list)


@_command("show", STATE, "Exit code: 0; 2 when it cannot be read.")
@click.argument("state")
def show(state: str, as_json: bool) -> None:
    """Show what a state is: place, writer, models, optimizers, files."""
    _print(_described(one_state(state)), as_json, show_description)


@_command(
    "verify",
    WHERE.format("STATE", "all its states"),
    "Exit code: 0 when all are whole; 1 when one is damaged; 2 when STATE is none,\nor was written by a newer samebits.",
)
@click.argument("state", nargs=-1, required=True)
def verify(state: tuple[str, ...], as_json: bool) -> None:
    """Read every byte of states and say which file is damaged."""
    found = dict.fromkeys(one for word in state for one in _at_least_one(word))
    chosen = map(fill, found)
    examined = [record for one in chosen if (record := described_at(one, partial(examine, one))) is not None]
    _print(examined, as_json, show_examined)
    sys.exit(0 if all(one["whole"] for one in examined) else 1)


@_command(
    "diff",
    f"{STATE}\nWho wrote a state (ranks, strategy, versions) is shown, but makes no difference.",
    "Exit code: 0 when both have the same bits; 1 when not; 2 when one cannot be read.",
)
@click.argument("one", metavar="STATE")
@click.argument("other", metavar="STATE")
def diff(one: str, other: str, as_json: bool) -> None:
    """Compare two states bit by bit: models, optimizers, streams, counters."""
    left, right = one_state(one), one_state(other)
    for found in (left, right):
        _described(found)  # which refuses what nobody should read
    compare = _with_torch("samebits.rank.checkpoint.format.comparison").compare
    record = described_at(left, lambda: described_at(right, lambda: compare(left.path, right.path)))
    _print(record, as_json, show_differences)
    sys.exit(0 if record["same"] else 1)


@_command(
    "export",
    f"{STATE}\nFILE ends in .safetensors, or in .pt, .pth or .bin for a state_dict of torch.save.",
    "Exit code: 0; 1 when FILE cannot be written; 2 for a mistake.",
)
@click.option("--model", default=None, metavar="NAME", help="Which model, where there are several: model1, model2.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.argument("state")
@click.argument("file")
def export(state: str, file: str, model: str | None, force: bool, as_json: bool) -> None:
    """Write the weights to one file of safetensors or torch.save."""
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
    _end_tidily()
    room = click.get_current_context().with_resource(TemporaryFolder(COPY))
    return states_at_url(word, room)


def _end_tidily() -> None:
    """Let a signal that would end this process remove its copies first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def _at_least_one(word: str) -> list[Found]:
    found = _states_at(word)
    if not found:
        raise UsageError(
            f"{visible(word)} has no states yet.", "Start the run with --save-every, or wait for the first."
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
