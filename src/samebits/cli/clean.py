"""`samebits clean`: remove what runs left that were killed as a whole."""

from __future__ import annotations

import click

from samebits.machine.leftovers import SHARED_MEMORY, left_folders, remove_left_folders, remove_unmarked_group_files
from samebits.machine.leftovers import unmarked_group_files as left_memory
from samebits.machine.visible import visible

EPILOG = """\b
Only what is marked as samebits's own and held by no process is removed. No
process is ended, and nothing of a run that goes on is touched.

\b
Exit code: 0."""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
def clean() -> None:
    """Remove shared memory, snapshots and sockets of runs whose processes are gone."""
    before = _left()
    remove_left_folders()
    remove_unmarked_group_files()
    removed = sorted(before - _left())
    for path in removed:
        click.echo(f"removed {visible(path)}")
    if not removed:
        click.echo("There was nothing to remove.")


def _left() -> set[str]:
    memory = left_memory() if SHARED_MEMORY.is_dir() else []
    return {*map(str, left_folders()), *(str(SHARED_MEMORY / name) for name in memory)}
