"""`samebits watch`: what every rank of a run is doing."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import click

from samebits.cli.completion import runs
from samebits.cli.grouped_help import SETTINGS
from samebits.machine.visible import visible
from samebits.protocol.run_folder import runs_folder

EPILOG = """\b
RUN is a run's name or folder; without it: the newest run below samebits-runs.
The run is not disturbed: its journals are read, and no process of it takes part.

\b
Exit code: 0, also after Ctrl-C; 2 when RUN is no run."""
EVERY_S = 0.5
HEADER_ROWS = 2
"""Around the screen: the run, the end."""


@click.command(epilog=EPILOG, context_settings=SETTINGS)
@click.option("--once", is_flag=True, help="Print the table once. [default where there is no terminal]")
@click.option("--json", "as_json", is_flag=True, help="Print the ranks once as JSON.")
@click.option("--web", is_flag=True, help="Show the run on a page that only this machine can open, until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The page's port. [default: any that is free]")
@click.option("--browser/--no-browser", default=True, help="Open the page, or print its address only.")
@click.argument("run", required=False, shell_complete=runs)
def watch(run: str | None, *, once: bool, as_json: bool, web: bool, port: int, browser: bool) -> None:
    """Show what every rank of RUN is doing, until the run has ended."""
    from rich.live import Live

    from samebits.cli.under_way import screen
    from samebits.launcher.watch.places import run_at
    from samebits.launcher.watch.table import show_table, table_of, total_of
    from samebits.launcher.watch.view import Viewer
    from samebits.show.run_data import RunDataReader
    from samebits.show.screen import screen_of

    found = run_at(run, runs_folder(os.environ))
    if web:
        _serve(found.folder.path, port, browser=browser)
        return
    viewer, console = Viewer(found), screen()
    if as_json:
        click.echo(json.dumps({**found.as_json(), "ranks": [vars(row) for row in viewer.look().rows]}))
        return
    console.print(visible(found.text), soft_wrap=True, markup=False)
    if once or not console.is_terminal:
        view = viewer.look()
        console.print(total_of(view), soft_wrap=True, markup=False)
        show_table(table_of(view), console)
        return
    reader = RunDataReader(found.folder)
    try:
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while True:
                view = viewer.look()
                live.update(screen_of(reader.read(), view, console.height - HEADER_ROWS, console.width), refresh=True)
                if view.is_over:
                    break
                time.sleep(EVERY_S)
        console.print("the run has ended")
    except KeyboardInterrupt:
        sys.exit(0)


def _serve(path: Path, port: int, *, browser: bool) -> None:
    from samebits.show.live import LiveRun, show_in_browser
    from samebits.show.server import LivePage

    with LivePage(LiveRun(path).state, port=port) as page:
        for line in show_in_browser(page, path.parent, wanted=browser):
            click.echo(line)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            sys.exit(0)
