"""`samebits demo`: see ranks die, and the same weights all the same."""

from __future__ import annotations

import os
import sys

import click

from samebits.cli.grouped_help import SETTINGS
from samebits.protocol.run_folder import runs_folder

MOST_RANKS = 4
"""The training has 4 lanes."""
LINGER_S = 5.0
"""How long the page is served after the end, at most, until a browser has it."""
EPILOG = """\b
It trains 1,797 handwritten digits: first undisturbed on 1 rank, then on several
while a page shows the loss, the ranks, and a button that kills each of them.

\b
Exit code: 0 when both runs have the same bits; 1 when not."""


@click.command(epilog=EPILOG, context_settings=SETTINGS)
@click.option("-n", "--ranks", type=click.IntRange(1, MOST_RANKS), default=MOST_RANKS, show_default=True, help="Ranks.")
@click.option("--auto", is_flag=True, help="Kill ranks without a person, and open no browser.")
@click.option("--browser/--no-browser", default=True, help="Open the page, or print its address only.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The page's port. [default: any that is free]")
def demo(ranks: int, auto: bool, browser: bool, port: int) -> None:
    """Train digits on several ranks, kill any of them, and compare the weights."""
    from samebits.launcher.terminal.terminal import Terminal
    from samebits.show.demo import Demo
    from samebits.show.live import show_in_browser
    from samebits.show.server import LivePage

    shown = Demo(ranks, runs_folder(os.environ), auto=auto)
    with LivePage(shown.state, shown.kill, port) as page:
        for line in show_in_browser(page, runs_folder(os.environ), wanted=browser and not auto):
            click.echo(line, err=True)
        same = shown.run(Terminal(os.environ), lambda line: click.echo(line, err=True))
        if page.num_requests:
            page.seen_over.wait(LINGER_S)
    sys.exit(0 if same else 1)
