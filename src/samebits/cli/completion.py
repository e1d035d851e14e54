"""What a shell completes: files for scripts, the runs below the run folder, names of strategies and trackers.

`samebits completion bash` prints what the shell reads once; it asks `samebits` again at each Tab.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem, get_completion_class

from samebits.cli.grouped_help import SETTINGS
from samebits.protocol.run_folder import runs_folder

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
VARIABLE = "_SAMEBITS_COMPLETE"
EPILOG = """\b
Once, for the shell that you use:
  samebits completion bash >> ~/.bashrc
  samebits completion zsh >> ~/.zshrc
  samebits completion fish > ~/.config/fish/completions/samebits.fish

\b
Exit code: 0; 2 for another shell."""


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, as the shell completes them."""
    return [CompletionItem(incomplete, type="file")]


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The runs below the run folder, the newest first; where none begins like this, files and folders.

    Bash puts an offered name on the command line as it is, so `$(...)` in it would run: such runs are not offered.
    """
    try:
        with os.scandir(runs_folder(os.environ)) as entries:
            found = sorted(
                (one for one in entries if _is_offered(one.name) and one.name.startswith(incomplete) and one.is_dir()),
                key=lambda one: -one.stat().st_mtime,
            )
    except OSError:
        found = []
    return [CompletionItem(one.name) for one in found] or files(ctx, param, incomplete)


def _is_offered(name: str) -> bool:
    return name[0] != "." and shlex.quote(name) == name


def one_of(names: Sequence[str]) -> Complete:
    """One of these names; the last of several behind commas."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(last)]

    return complete


@click.command(epilog=EPILOG, context_settings=SETTINGS)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands, options, scripts and runs."""
    from samebits.cli.main import commands

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(commands, {}, "samebits", VARIABLE).source())
