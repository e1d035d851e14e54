"""`samebits`: the commands, loaded when they are called, so `samebits --help` answers at once and without torch."""

from __future__ import annotations

import errno
import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches

from samebits.errors import SamebitsError, UsageError, mistake_text
from samebits.machine.visible import hung, visible
from samebits.protocol.installation import NEEDED, VERSION, check_package, not_installed

try:
    import click
except ModuleNotFoundError:
    missing = not_installed("click")
    print(mistake_text(missing.problem, missing.fix), file=sys.stderr)
    sys.exit(2)

COMMANDS = {
    "run": ("samebits.cli.run", "Start a script on several ranks, watch it, stop it."),
    "verify": ("samebits.cli.verify", "Prove that a script gives the same bits on any number of ranks."),
    "bench": ("samebits.cli.bench", "Compare the speed of a script under several strategies."),
    "demo": ("samebits.cli.demo", "Train on several ranks, kill any of them, and compare the weights."),
    "watch": ("samebits.cli.watch", "Show what every rank of a run is doing."),
    "diagnose": ("samebits.cli.diagnose", "Say what went wrong in a run, or does now."),
    "report": ("samebits.cli.report", "Write what there is to see of a run, or of several, into one HTML file."),
    "audit": ("samebits.cli.audit", "Check what a run has recorded: make parts of it again."),
    "replay": ("samebits.cli.replay", "Go back to a step of a run, with its own bits."),
    "checkpoint": ("samebits.cli.checkpoint", "List, show, verify, compare and export saved states."),
    "record": ("samebits.cli.record", "Show, compare and publish what runs recorded."),
    "sbatch": ("samebits.cli.sbatch", "Write a job script for SLURM that resumes where it was stopped."),
    "clean": ("samebits.cli.clean", "Remove what runs left that were killed as a whole."),
    "completion": ("samebits.cli.completion", "Print what makes a shell complete commands, scripts and runs."),
    "doctor": ("samebits.cli.doctor", "Check this machine for anything that would keep a run from working."),
}
"""By name: the module (with a command of that name) and its line in `--help`."""
RESUMES = ("--resume", "--resume-from", "--continue")
RESUME = "Start it with --name and the same command resumes; --fresh begins anew, and --from takes any state."
EXAMPLES = """\b
Examples:
  samebits run train.py --lr 0.1             one rank per GPU, or per core
  samebits run -n 4 train.py                 four ranks
  samebits verify --ranks 1,2,4 train.py     the same bits on 1, 2 and 4 ranks?
  samebits bench --ranks 1,2,4 train.py      how fast is it on each?
  samebits doctor                            can this machine run?"""


class LazyGroup(click.Group):
    """Commands by name, each imported only when it is called."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[name][0]), name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise UsageError(f"{error.option_name} needs a command before it.", _meant("run", sys.argv[1:])) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, *rest = args
        if name not in COMMANDS and not ctx.resilient_parsing:
            if name.endswith(".py") or os.path.isfile(name):  # noqa: PTH113 - a name of any form, which Path may refuse
                raise UsageError(f"`samebits {visible(name)}` names no command.", _meant("run", args))
            for command in get_close_matches(name, COMMANDS, 1):
                raise UsageError(f"samebits has no command `{visible(name)}`.", _meant(command, rest))
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _meant(command: str, words: Sequence[str]) -> str:
    """The fix, as a command that can be copied."""
    return f"Write `{visible(shlex.join(['samebits', command, *words]))}`."


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"samebits {VERSION}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="PyTorch, any number of processes, even if some of them die: the same weights, to the last bit.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def commands() -> None:
    """The group; its commands do the work."""


def main() -> None:
    """The entry point of `samebits` and `python -m samebits`. A mistake is its problem, its fix, and exit code 2."""
    # [Note: why the environment is copied first]
    # `run` takes the key out of it, so that ranks do not inherit it. Telling other nodes about an error needs the key.
    environ = dict(os.environ)
    try:
        if sys.argv[1:2] != ["doctor"]:  # which says whose it is
            check_package()
        code = _run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except (click.ClickException, SamebitsError, OSError) as error:
        code = _say(error)
        _tell_others(error, environ)
    except (KeyboardInterrupt, click.Abort):
        code = 130
    sys.exit(code)


def _run() -> int:
    try:
        return commands.main(prog_name="samebits", standalone_mode=False) or 0
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        raise not_installed(error.name) from None
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2


def _say(error: click.ClickException | SamebitsError | OSError) -> int:
    """Print what is wrong on standard error; the exit code. A broken pipe prints nothing: its reader is gone."""
    if not isinstance(error, BrokenPipeError):
        # Where standard error cannot be written, only the exit code can say it.
        with suppress(OSError):
            click.echo(_text(error), err=True)
    if isinstance(error, OSError):
        # The interpreter would try again to write the rest, and complain.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    too_many_files = isinstance(error, OSError) and error.errno == errno.EMFILE
    return 2 if too_many_files or isinstance(error, (click.ClickException, UsageError)) else 1


def _tell_others(error: Exception, environ: dict[str, str]) -> None:
    """Let the other nodes of a run know why this one does not take part."""
    if sys.argv[1:2] == ["run"] and not isinstance(error, BrokenPipeError):
        command = commands.get_command(click.Context(commands), "run")
        with suppress(KeyboardInterrupt):
            importlib.import_module("samebits.cli.to_other_nodes").tell_others(command, sys.argv[2:], environ, error)


def _text(error: click.ClickException | SamebitsError | OSError) -> str:
    """Click's message, with a pointer to `--help` for a usage error; ours unchanged; the system's with its file."""
    if isinstance(error, UsageError):
        return mistake_text(error.problem, error.fix)
    if isinstance(error, SamebitsError):
        return f"error: {hung(error)}"
    if isinstance(error, OSError):
        if error.errno == errno.EMFILE:
            problem = "This needs more open files than a process may have here."
            return mistake_text(problem, "Raise the limit with `ulimit -n 1024`.")
        what = repr(error.filename) if error.filename else "the output"
        return f"error: {hung(f'{what} cannot be used: {error.strerror}.')}"
    context, problem = error.ctx if isinstance(error, click.UsageError) else None, error.format_message()
    if context is None:
        return f"error: {hung(problem)}"
    fix = f"See `{context.command_path} --help`."
    if isinstance(error, click.NoSuchOption) and error.option_name in RESUMES:
        problem, fix = f"No such option {error.option_name}: a run with --name resumes by itself.", RESUME
    return mistake_text(problem, fix)


if __name__ == "__main__":
    main()
