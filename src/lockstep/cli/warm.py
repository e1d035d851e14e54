"""`lockstep warm`: from the command line to a nursery that waits, to a list of those that do, or to their end."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from lockstep.cli.program import check_here, machine_for
from lockstep.errors import UsageError
from lockstep.launch.sizing import Wish, size
from lockstep.launch.warm.client import INSIDE_A_RUN
from lockstep.launch.warm.no_folder import check_folder
from lockstep.launch.warm.starting import MOST, start_waiting
from lockstep.launch.warm.waiters import SILENT, Waiter, keep_longer, stop_waiters, waiters
from lockstep.launch.warm.wish import parse_time

EPILOG = """\b
One process imports torch and waits. The next `lockstep run` of the same
interpreter, environment and files begins in it, with the same bits and
messages; any other run starts as always. LOCKSTEP_WARM=10m lets each run keep
one for the next (not where CI is set); LOCKSTEP_WARM=off uses none. At most
three wait: a fourth ends the one that nobody used for longest.

\b
Exit code: 0; 1 when it cannot wait here; 2 for a mistake in the options, or a
limit or folder that you can set right."""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--for", "for_text", default=None, metavar="10m", help="How long it waits for each run. [default: 10m]")
@click.option("-n", "ranks", metavar="N|auto", default=None, help="Ranks of these runs: decides their threads.")
@click.option("--threads", type=int, default=None, help="Threads per rank of these runs. [default: cores / ranks]")
@click.option("--status", is_flag=True, help="List those that wait.")
@click.option("--stop", is_flag=True, help="End all of them. Runs go on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def warm(**options: Any) -> None:
    """Let the next `lockstep run` begin at once: keep a process that has imported torch."""
    check_here()
    status, stop, as_json = (options[name] for name in ("status", "stop", "as_json"))
    of_new = {"for_text": "--for", "ranks": "-n", "threads": "--threads"}
    given = [option for name, option in of_new.items() if options[name] is not None]
    if status and stop:
        raise UsageError("--status and --stop contradict each other.", "Give one of them.")
    if (status or stop) and given:
        raise UsageError(f"{given[0]} is for a new one.", f"Leave out {'--status' if status else '--stop'}.")
    if stop:
        number = stop_waiters(os.environ)
        _tell({"stopped": number}, [f"stopped   {number} that waited" if number else "stopped   none waited"], as_json)
    elif status:
        found = waiters(os.environ)
        _tell({"waiting": [one.as_json() for one in found]}, _lines(found), as_json)
    else:
        _start(parse_time(options["for_text"] or "10m", "--for"), options["ranks"], options["threads"], as_json)


def _start(for_s: float, ranks: str | None, threads: int | None, as_json: bool) -> None:
    if INSIDE_A_RUN in os.environ:
        raise UsageError("This is a process of a run, which ends with it.", "Call `lockstep warm` in a terminal.")
    check_folder(os.environ)
    decided = size(Wish(ranks or "auto", "auto", None, threads), machine_for("auto", is_quiet=as_json))
    waiter, _ = keep_longer(os.environ, decided.threads, for_s)
    if waiter is not None:
        _tell({"new": False, **waiter.said}, [f"warm      already; {_about(waiter)}"], as_json)
        return
    told = start_waiting(os.environ, decided.threads, for_s)
    text = (
        f"warm      process {told['process']} holds {told['bytes'] / 1e6:.0f} MB and waits {_time(for_s)} for each run"
    )
    threads_text = f"{decided.threads} thread{'s' * (decided.threads != 1)} per rank"
    lines = [
        f"{text} with {threads_text}",
        *(f"ended     process {one}: at most {MOST} wait, and nobody used it for longest" for one in told["ended"]),
    ]
    _tell({"new": True, "threads": decided.threads, **told}, lines, as_json)


def _tell(told: dict[str, Any], lines: list[str], as_json: bool) -> None:
    for line in [json.dumps(told)] if as_json else lines:
        click.echo(line)


def _lines(found: list[Waiter]) -> list[str]:
    return [f"warm      {_about(one)}" for one in found] or ["warm      none waits"]


def _about(one: Waiter) -> str:
    """One of them, in a line."""
    if not one.said:
        return f"process {one.process}: {SILENT}"
    said = one.said
    threads = f"{said['threads']} thread{'s' * (said['threads'] != 1)} per rank"
    use = f"{said['runs']} run{'s' * (said['runs'] != 1)} so far"
    return (
        f"process {one.process} holds {one.bytes / 1e6:.0f} MB; {threads}; {use}; "
        f"{_time(said['left_s'])} left; {said['python']}"
    )


def _time(seconds: float) -> str:
    """`90 s`, `10 min`."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
