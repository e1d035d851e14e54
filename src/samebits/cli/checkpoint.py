"""`samebits checkpoint`: its commands and their options."""

from __future__ import annotations

from collections.abc import Callable

import click

from samebits.cli.completion import runs
from samebits.cli.grouped_help import SETTINGS

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
@click.argument("where", required=False, shell_complete=runs)
def ls(where: str | None, as_json: bool) -> None:
    """List states: step, epoch, time, size, hash, whether files are missing."""
    from samebits.cli.start_checkpoint import list_states

    list_states(where, as_json)


@_command("show", STATE, "Exit code: 0; 2 when it cannot be read.")
@click.argument("state", shell_complete=runs)
def show(state: str, as_json: bool) -> None:
    """Show what a state is: place, writer, models, optimizers, files."""
    from samebits.cli.start_checkpoint import show_state

    show_state(state, as_json)


@_command(
    "verify",
    WHERE.format("STATE", "all its states"),
    "Exit code: 0 when all are whole; 1 when one is damaged; 2 when STATE is none,\nor was written by a newer samebits.",
)
@click.argument("state", nargs=-1, required=True, shell_complete=runs)
def verify(state: tuple[str, ...], as_json: bool) -> None:
    """Read every byte of states and say which file is damaged."""
    from samebits.cli.start_checkpoint import verify_states

    verify_states(state, as_json)


@_command(
    "diff",
    f"{STATE}\nWho wrote a state (ranks, strategy, versions) is shown, but makes no difference.",
    "Exit code: 0 when both have the same bits; 1 when not; 2 when one cannot be read.",
)
@click.argument("one", metavar="STATE", shell_complete=runs)
@click.argument("other", metavar="STATE", shell_complete=runs)
def diff(one: str, other: str, as_json: bool) -> None:
    """Compare two states bit by bit: models, optimizers, streams, counters."""
    from samebits.cli.start_checkpoint import compare_states

    compare_states(one, other, as_json)


@_command(
    "export",
    f"{STATE}\nFILE ends in .safetensors, or in .pt, .pth or .bin for a state_dict of torch.save.",
    "Exit code: 0; 1 when FILE cannot be written; 2 for a mistake.",
)
@click.option("--model", default=None, metavar="NAME", help="Which model, where there are several: model1, model2.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.argument("state", shell_complete=runs)
@click.argument("file")
def export(state: str, file: str, model: str | None, force: bool, as_json: bool) -> None:
    """Write the weights to one file of safetensors or torch.save."""
    from samebits.cli.start_checkpoint import export_weights

    export_weights(state, file, model, force, as_json)
