"""From the options of `samebits run` to a request: all that can be refused before anything starts is refused here."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from samebits.cli.program import check_program, machine_for
from samebits.cli.run_places import Branching, PlaceWish, check_branch, places_of
from samebits.cli.script_words import WORDS
from samebits.cli.shared_options import (
    arithmetic_from,
    check_form,
    form_from,
)
from samebits.cli.torchrun_options import place_from, variable, without_meaning
from samebits.errors import UsageError
from samebits.launcher.choices import OnDamage, OnStall, Recover, Recovery, Verbosity
from samebits.launcher.nodes.key import KeySettings
from samebits.launcher.nodes.place import NodePlace
from samebits.launcher.record_facts import command_facts
from samebits.launcher.request import Computation, EntryPoint, LaunchRequest, NodeOptions, Output, Placement
from samebits.launcher.script_source import lanes_named, local_rank_option, source_of
from samebits.launcher.sizing import Size, Wish, check_numbers, size
from samebits.launcher.tracking import check_trackers
from samebits.machine.gpus import gpu_names
from samebits.protocol.backends import check_backend
from samebits.protocol.layout.mesh import (
    Form,
    check_over_nodes,
    check_shrinks,
    is_data_parallel,
    launched,
    strategy_named,
)
from samebits.protocol.saving import Keeping, Schedule, check_name, parse_checks
from samebits.protocol.url import check_shared


def request_from(options: dict[str, Any]) -> tuple[LaunchRequest, list[str]]:
    """Check everything that can be checked before anything starts; last, take a run folder.

    Returns the request, and the names of given options that change nothing.

    Raises:
        UsageError: with the fix.
    """
    own = RunOptions.taken(options)
    place = place_from(own.nnodes, options, os.environ, own.script)
    ignored = without_meaning(options, on_one_node=place.is_one_node)
    check_options(own)
    verbosity = Verbosity.QUIET if own.quiet else Verbosity.DETAILED if own.verbose else Verbosity.NORMAL
    form, arithmetic = form_from(vars(own)), arithmetic_from(vars(own))
    if not place.is_one_node:
        check_over_nodes(form)
    decided = _size(own, form, place)
    ranks, form = launched(form, decided.ranks)
    if place.is_one_node:
        # On several nodes this is checked when they know how many ranks they have together.
        check_form(form, ranks, own.lanes, decided.device)
    if own.backend is not None:
        check_backend(own.backend, decided.device, find_spec("samebits._native") is not None)
    recovery = replace(recovery_from(own, form), grace_s=own.grace, resume_nonfinite=own.resume_nonfinite)
    check_program(own.script, own.module, "run")
    source = source_of(own.script, own.module)
    wish = PlaceWish(own.script, own.name, own.log_dir, own.save_every, own.keep, own.states)
    branching = Branching(own.parent, own.fresh, own.skip_steps, takes_any=own.resume_nonfinite)
    folder, base, saving, course = places_of(wish, place, branching)
    context = click.get_current_context(silent=True)
    entry = _entry(own, source)
    placement = Placement(
        ranks=ranks,
        threads=decided.threads,
        device=decided.device,
        device_given=decided.device_given,
        threads_given=own.threads is not None,
        cores=decided.cores,
        devices=gpu_names(os.environ, decided.ranks) if decided.device == "cuda" else (),
        shared_gpus=decided.shared_gpus,
        why=decided.why,
        crowded=decided.crowded,
        spawns=own.start_method == "spawn",
    )
    output = Output(
        folder.absolute() if base.is_absolute() else folder,
        verbosity,
        command_started_ns(),
        own.track,
        steps_from("--trace", own.trace),
        own.full_traceback,
    )
    computation = Computation(own.lanes, form, arithmetic, own.backend or "", own.check_every or "", course=course)
    if own.record:
        facts = command_facts(own.script, own.args, is_module=own.module)
        others = RECORDED_STATES if own.record_states is None else own.record_states
        computation = replace(computation, record={**facts, **course.as_json(), "states": others})
    words = context.meta.get(WORDS, ()) if context else ()
    nodes = NodeOptions(place, KeySettings.take(own.key_file, os.environ), words)
    return LaunchRequest(entry, placement, output, computation, recovery, saving, nodes), ignored


PLAIN_STRATEGIES = (None, "auto", "ddp", "zero1")
"""Under these every rank needs a lane, also where only the script says how many there are."""


RECORDED_STATES = 8
"""How many states stay besides the newest ones: with them an audit can begin at many places."""


@dataclass(frozen=True)
class RunOptions:
    """What the command line says, but for those of torchrun's options that say where this node is; None: not given."""

    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    ranks: str | None = None
    nproc_per_node: str | None = None
    nnodes: str | None = None
    key_file: str | None = None
    device: str = "auto"
    lanes: int | None = None
    threads: int | None = None
    strategy: str | None = None
    mesh: str | None = None
    schedule: str | None = None
    precision: str | None = None
    numerics: str | None = None
    allow: str = ""
    backend: str | None = None
    check_every: str | None = None
    name: str | None = None
    save_every: str | None = None
    keep: int | None = None
    states: str | None = None
    grace: float = 30.0
    resume_nonfinite: bool = False
    recover: str | None = None
    shrink: bool = False
    max_restarts: int | None = None
    on_damage: str = OnDamage.RESTART.value
    on_stall: str = OnStall.REPORT.value
    stall_after: float | None = None
    snapshots: str | None = None
    prove: str | None = None
    record: bool = False
    record_states: int | None = None
    log_dir: str | None = None
    track: tuple[str, ...] = ()
    trace: str | None = None
    full_traceback: bool = False
    quiet: bool = False
    verbose: bool = False
    start_method: str = "fork"
    parent: str | None = None
    fresh: str | None = None
    skip_steps: str | None = None
    use_env: bool | None = None

    @classmethod
    def taken(cls, options: dict[str, Any]) -> RunOptions:
        """Those of `options`, which are taken out of it."""
        return cls(**{one.name: options.pop(one.name) for one in fields(cls)})


def check_options(own: RunOptions) -> None:
    """Raise `UsageError` for what no machine could meet: a job script is written on another one than it runs on."""
    if own.quiet and own.verbose:
        raise UsageError("-q and -v contradict each other.", "Give one of them.")
    check_numbers(own.lanes, own.threads, own.ranks or own.nproc_per_node or "auto")
    if own.strategy is not None:
        strategy_named(own.strategy)
    arithmetic_from(vars(own))
    recovery_from(own, form_from(vars(own)))
    grace_from(own.grace)
    check_branch(own.parent, own.name, own.fresh, own.skip_steps)
    check_saving(own.name, own.save_every, own.keep, own.states)
    check_recording(own)
    check_trackers(own.track)
    for option, text in (("--prove", own.prove), ("--trace", own.trace)):
        steps_from(option, text)


def recovery_from(own: RunOptions, form: Form) -> Recovery:
    """What the options say about lost and damaged ranks.

    Raises:
        UsageError: for what cannot be.
    """
    max_restarts, shrinks = own.max_restarts, own.shrink
    recover = Recover(own.recover or "auto")
    if shrinks:
        check_shrinks(form)
    if max_restarts is not None and max_restarts < 0:
        raise UsageError(f"--max-restarts must be at least 0, but is {max_restarts}.", "Give 0 to stop at a failure.")
    if own.check_every is not None:
        parse_checks(own.check_every, "--check-every ")
    keeping = Keeping.parse(own.snapshots or "auto")
    _check_restarts(recover, max_restarts, keeping, shrinks=shrinks)
    on_stall = OnStall(own.on_stall)
    _check_stalls(on_stall, own.stall_after, recover, max_restarts)
    damage = OnDamage(own.on_damage)
    return Recovery(recover, max_restarts, damage, on_stall, own.stall_after, keeping, shrinks=shrinks)


def _check_restarts(recover: Recover, max_restarts: int | None, keeping: Keeping, *, shrinks: bool) -> None:
    """Raise `UsageError` where one option asks for restarts and another one for none."""
    stops = recover is Recover.OFF
    asks = "--recover off" if stops else "--shrink"
    if stops and shrinks:
        raise UsageError("--recover off and --shrink contradict each other.", "Give one of them.")
    if (stops and max_restarts) or (shrinks and max_restarts == 0):
        raise UsageError(
            f"{asks} and --max-restarts {max_restarts} contradict each other.",
            f"Give one of them; {variable('--max-restarts')} counts as the second.",
        )
    if keeping.steps and (stops or max_restarts == 0):
        none = "--recover off" if stops else "--max-restarts 0"
        problem = f"--snapshots {keeping.steps}steps is for restarts, and {none} allows none."
        raise UsageError(problem, "Leave one of them out.")


def _check_stalls(on_stall: OnStall, stall_after_s: float | None, recover: Recover, max_restarts: int | None) -> None:
    """Raise `UsageError` for a limit that is none, and where a stalled rank can be replaced by none."""
    if stall_after_s is not None and not 0 < stall_after_s < float("inf"):
        raise UsageError(
            f"--stall-after must be a number of seconds above 0, but is {stall_after_s:g}.",
            "Leave it out for limits that fit what each rank does.",
        )
    if on_stall is OnStall.REPLACE and (recover is Recover.OFF or max_restarts == 0):
        none = "--recover off" if recover is Recover.OFF else "--max-restarts 0"
        raise UsageError(f"--on-stall replace needs restarts, and {none} allows none.", "Leave one of them out.")


def check_saving(name: str | None, save_every: str | None, keep: int | None, states: str | None = None) -> None:
    """Raise `UsageError` for options of automatic states that cannot be."""
    if save_every is None:
        if keep is not None:
            raise UsageError("--keep is about the states of --save-every.", "Give both, or leave it out.")
        if states is not None:
            raise UsageError("--states is about the states of --save-every.", "Give both, or leave it out.")
        return
    Schedule.parse(save_every, "--save-every ")
    if name is None:
        raise UsageError("--save-every needs a name under which the next start finds the states.", "Add --name exp1.")
    check_name(name)
    if keep is not None and keep < 1:
        raise UsageError(f"--keep must be at least 1, but is {keep}.", "Leave it out to keep 3.")
    if states is not None:
        check_shared(states, "--states")


def check_recording(own: RunOptions) -> None:
    """Raise `UsageError` for options of a record that cannot be."""
    if own.record_states is None:
        return
    if not own.record:
        raise UsageError("--record-states is about the states of a run with --record.", "Give both, or leave it out.")
    if own.record_states < 0:
        problem = f"--record-states must be at least 0, but is {own.record_states}."
        raise UsageError(problem, f"Leave it out for {RECORDED_STATES}.")


def _entry(own: RunOptions, source: str | None) -> EntryPoint:
    script, is_module = own.script, own.module
    return EntryPoint(
        script=None if is_module else Path(script),
        module=script if is_module else None,
        args=tuple(own.args),
        local_rank_option=local_rank_option(source, own.args, own.use_env),
    )


def steps_from(option: str, text: str | None) -> int:
    """Return the number in `20steps`; 0 for None. Raises `UsageError` for anything else."""
    found = re.fullmatch(r"([1-9]\d{0,5})( ?steps?)?", text) if text is not None else None
    if text is not None and found is None:
        raise UsageError(f"{option} {text!r} is not a number of steps.", f"Write {option} 20steps.")
    return int(found[1]) if found is not None else 0


def grace_from(seconds: float) -> float:
    """Return it; raise `UsageError` for what is no time."""
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"--grace must be a number of seconds, but is {seconds:g}.", "Give 0 to stop without a state.")
    return seconds


def _size(own: RunOptions, form: Form, place: NodePlace) -> Size:
    if own.ranks is not None and own.nproc_per_node is not None:
        raise UsageError("-n and --nproc-per-node are the same option.", "Give one of them.")
    given = own.ranks if own.ranks is not None else own.nproc_per_node
    ranks = given if given is not None else place.ranks or os.environ.get(variable("--nproc-per-node")) or "auto"
    lanes = own.lanes
    if lanes is None and place.is_one_node and form.strategy in PLAIN_STRATEGIES and not (form.mesh or form.schedule):
        lanes = lanes_named(source_of(own.script, own.module) or "")
    wish = Wish(ranks, own.device, lanes, own.threads, replicas_of_one_rank=is_data_parallel(form))
    device = "cpu" if own.ranks == "cpu" and own.device == "auto" else own.device
    return size(wish, machine_for(device, is_quiet=own.quiet))


def command_started_ns() -> int:
    """time.monotonic_ns() of this process's start, from the kernel; to a hundredth of a second."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.monotonic_ns() - int(age_s * 1e9)
