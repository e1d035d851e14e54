"""`samebits verify`: from its options to a proof, its table and its exit code."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console

from samebits.cli import start_repeat
from samebits.cli.program import check_program, machine_for, program_from
from samebits.cli.shared_options import VERIFIED_RANKS, VERIFIED_STEPS, check_form, form_from
from samebits.cli.step_summary import append_summary, check_summary
from samebits.cli.under_way import Progress, UnderWay, screen
from samebits.errors import UsageError
from samebits.launcher.proofs import Sources, remember
from samebits.launcher.script_source import file_has_lanes, source_place
from samebits.launcher.trials.trials import Files, Program, Trials
from samebits.machine.regular_file import other_kind
from samebits.protocol.claims import Proved
from samebits.protocol.layout.mesh import launched, on_ranks
from samebits.verify.continued import Continued, show_continued
from samebits.verify.interruption import Interruption, interrupt
from samebits.verify.plain import ACCEPTABLE, SCRIPT
from samebits.verify.repeat.saved_operators import Saved, read_against
from samebits.verify.report import show
from samebits.verify.result import Result
from samebits.verify.saved_bits import SavedBits
from samebits.verify.verify import Proof, verify


def start(options: dict[str, Any]) -> NoReturn:
    """Prove what the options say; end with the exit code. Raises UsageError."""
    check_summary(options["summary"])
    save, against = bits_files(options["save"], options["against"])
    if runs_are_compared(options, against):
        start_repeat.start(options, save, against)
    began = time.monotonic()
    proof = proof_from(options) if options["interrupt"] is None else interruption_from(options)
    under_way = UnderWay(is_quiet=options["quiet"])
    progress = Progress(under_way)
    sources = _sources(proof.program)
    files = sources.files()
    with Trials(proof.program, progress.watch, files=Files(options["in_place"], under_way.note)) as trials:
        result: Result | Continued | None = None
        try:
            with progress.until_stopped():
                result = interrupt(proof, trials) if isinstance(proof, Interruption) else verify(proof, trials)
        except UsageError as error:
            # What the script itself makes impossible, such as fewer lanes, a commit under test may have brought.
            if not options["against"]:
                raise
            trials.remove()
            start_repeat.cannot_tell(error, as_json=options["as_json"])
        finally:
            if result is None or result.exit_code == 0:
                trials.remove()
        if result.exit_code:
            result.kept, result.folder = trials.keep(), str(trials.base)
    _keep(result, sources, files, proof.program.args)
    seconds, is_detailed = time.monotonic() - began, options["verbose"]

    def print_result(console: Console) -> None:
        if isinstance(result, Continued):
            show_continued(result, console, is_detailed=is_detailed, seconds=seconds)
        else:
            show(result, console, is_detailed=is_detailed, seconds=seconds)

    if options["as_json"]:
        click.echo(json.dumps(result.as_json(), allow_nan=False))
    else:
        print_result(screen())
    append_summary(options["summary"], options["script"], print_result)
    sys.exit(result.exit_code)


def _sources(program: Program) -> Sources:
    return Sources(program.script, program.module, (program.form, program.arithmetic, program.device))


def _keep(result: Result | Continued, sources: Sources, files: dict[str, str], args: Sequence[str]) -> None:
    """Remember what was proved."""
    if isinstance(result, Result) and result.exit_code == 0 and len(result.ranks) > 1:
        remember(sources, files, args, Proved(result.num_steps, result.ranks, result.lanes, result.threads))


def runs_are_compared(options: dict[str, Any], against: tuple[Path, Saved] | None) -> bool:
    """Whether runs of the script are compared with each other: where that is asked for, or the script never calls samebits.init.

    Raises:
        UsageError: when there is no such script.
    """
    try:
        check_program(options["script"], options["module"], "verify")
    except UsageError as error:
        if against is not None:
            start_repeat.cannot_tell(error, as_json=options["as_json"])
        raise
    place = source_place(*((None, options["script"]) if options["module"] else (Path(options["script"]), None)))
    has_lanes = place is None or file_has_lanes(*place)
    if has_lanes and start_repeat.is_given(options, "num_processes"):
        raise UsageError(
            f"-n is for scripts without samebits.init(), but {options['script']} calls it.",
            "Name the numbers of ranks: --ranks 1,2,4.",
        )
    if against is not None and against[1].has_lanes != has_lanes:
        of, now = ("ranks", "runs") if not has_lanes else ("runs", "ranks")
        other_kind_of_bits = UsageError(
            f"{against[0]} has bits of {of}, but of this script {now} are compared: one of them calls samebits.init().",
            f"Write it again with --save {against[0]}.",
        )
        start_repeat.cannot_tell(other_kind_of_bits, as_json=options["as_json"])
    return not has_lanes or start_repeat.asked_for(options)


def proof_from(options: dict[str, Any]) -> Proof:
    """Check everything that can be checked before anything starts.

    Raises:
        UsageError: with the fix.
    """
    ranks = parse_ranks(options["ranks"] or VERIFIED_RANKS, alone=bool(options["save"] or options["against"]))
    check_counts(options)
    check_program(options["script"], options["module"], "verify")
    program = program_from(
        options, max(ranks), machine_for(options["device"], is_quiet=options["quiet"]), form_from(options)
    )
    save, read = bits_files(options["save"], options["against"])
    # One of operators is of a script without lanes, and has ended the command before.
    against = (read[0], read[1]) if read is not None and isinstance(read[1], SavedBits) else None
    if against is not None and not program.threads_given:
        program = replace(program, threads=int(against[1].facts["threads"]))
    steps = options["steps"] or (against[1].steps if against is not None else VERIFIED_STEPS)
    accepted = accepted_from(options["accept"])
    if SCRIPT in accepted and against is None:
        raise UsageError(f"--accept {SCRIPT} needs --against.", "Give both, or leave it out.")
    where = where_from(options, ranks, has_file=against is not None)
    proof = Proof(program, ranks, options["lanes"], steps, accepted, save, against, where=where)
    for count in ranks:
        started, told = launched(on_ranks(program.form, count), count)
        check_form(told, started, proof.lanes, program.device)
    return proof


def interruption_from(options: dict[str, Any]) -> Interruption:
    """The same for --interrupt.

    Raises:
        UsageError: with the fix.
    """
    if options["interrupt"] < 1:
        raise UsageError(
            f"--interrupt must be a step from 1 on, but is {options['interrupt']}.", "Name the step to stop after."
        )
    for name in ("save", "against", "accept", "where"):
        if start_repeat.is_given(options, name):
            raise UsageError(f"--{name} and --interrupt compare different things.", "Give one of them.")
    ranks = parse_ranks(options["ranks"] or "1", alone=True)
    if len(ranks) > 2:
        raise UsageError(
            f"--ranks {options['ranks']} are too many with --interrupt.",
            "Give one number, or two: until the stop, and after it.",
        )
    check_counts(options)
    check_program(options["script"], options["module"], "verify")
    program = program_from(
        options, max(ranks), machine_for(options["device"], is_quiet=options["quiet"]), form_from(options)
    )
    for count in ranks:
        started, told = launched(on_ranks(program.form, count), count)
        check_form(told, started, options["lanes"], program.device)
    steps = options["steps"] or VERIFIED_STEPS
    return Interruption(program, options["interrupt"], (ranks[0], ranks[-1]), options["lanes"], steps)


def where_from(options: dict[str, Any], ranks: Sequence[int], *, has_file: bool) -> bool:
    """Whether the operator is wanted at which numbers of ranks part.

    Raises:
        UsageError: where nothing can be compared so.
    """
    step = options.get("where")
    if step is None:
        return False
    if step:
        raise UsageError(
            f"--where {step} names a step, but with lanes the step that differs is recorded.",
            f"Leave out {step}.",
        )
    if has_file or len(set(ranks)) == 1:
        raise UsageError(
            "--where compares the lanes of different numbers of ranks.",
            "Name them, and no file: --ranks 1,2 --where.",
        )
    return True


def check_counts(options: dict[str, Any]) -> None:
    """Raise `UsageError` for --steps and --lanes below 1."""
    for name in ("steps", "lanes"):
        if options[name] is not None and options[name] < 1:
            raise UsageError(f"--{name} must be at least 1, but is {options[name]}.", "Leave it out for the default.")


def accepted_from(words: Sequence[str]) -> tuple[str, ...]:
    """The names behind --accept, given several times or with commas.

    Raises:
        UsageError: for an unknown name.
    """
    names = tuple(dict.fromkeys(name.strip() for word in words for name in word.split(",")))
    for name in names:
        if name not in ACCEPTABLE:
            raise UsageError(f"--accept {name}: there is no such finding.", f"Try --accept {' or '.join(ACCEPTABLE)}.")
    return names


def bits_files(save: str | None, against: str | None) -> tuple[Path | None, tuple[Path, Saved] | None]:
    """The file to write, and the file to compare with and what it holds.

    Raises:
        UsageError: when the first could not be written at the end, or the second cannot be trusted.
    """
    if save is not None:
        path = Path(save)
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK) or other_kind(path):
            raise UsageError(
                f"--save {save} cannot be written.", "Choose a file in a folder that exists and is writable."
            )
        if against is not None and path.resolve() == Path(against).resolve():
            raise UsageError(
                f"--save and --against name the same file {save}, which would hide a difference.", "Name two."
            )
    read = (Path(against), read_against(Path(against))) if against is not None else None
    return (Path(save) if save is not None else None), read


def parse_ranks(text: str, *, alone: bool = False) -> tuple[int, ...]:
    """`1,2,4` as numbers, in the given order; a single number only if `alone`.

    Raises:
        UsageError: for anything but numbers of at least 1 with commas between them.
    """
    try:
        ranks = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--ranks must be numbers separated by commas, but is {text!r}.", "Try --ranks 1,2.") from None
    if min(ranks) < 1:
        raise UsageError(f"--ranks must be numbers of at least 1, but is {text!r}.", "Try --ranks 1,2.")
    if len(set(ranks)) == 1 and not alone:
        raise UsageError(
            f"--ranks {text} leaves nothing to compare.",
            "Give at least two numbers (--ranks 1,2), or a file (--save, --against).",
        )
    return ranks
