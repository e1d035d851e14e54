"""`samebits.init` and `samebits.finish`: from the process's environment to a Run, and its end."""

from __future__ import annotations

import atexit
import operator
import os
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from samebits.errors import PeerLost, RanksDiffer, SamebitsError
from samebits.machine.visible import flush_output
from samebits.notices import say
from samebits.protocol.arithmetic import Arithmetic, allowed_named
from samebits.protocol.environment import RankEnvironment
from samebits.protocol.journal import device_words
from samebits.protocol.journal.failure import describe, write_failure
from samebits.protocol.layout.mesh import Form
from samebits.protocol.saving import SaidInScript, Saving, let_go
from samebits.rank.checkpoint.when.automatic import Automatic
from samebits.rank.checkpoint.when.last_snapshot import outlive
from samebits.rank.checkpoint.when.signals import LauncherStopRequests, NoStopRequests, SignalStopRequests
from samebits.rank.checkpoint.when.snapshots import Snapshots
from samebits.rank.checkpoint.when.states import KeptStates
from samebits.rank.checks.replicas import nothing_to_check
from samebits.rank.position.run_state import RunState
from samebits.rank.run.assembly import assemble
from samebits.rank.run.decisions import Wanted, check_arguments, check_steps, decide, read_environment
from samebits.rank.run.ending import end, help_with_errors, watch_device
from samebits.rank.run.run import Run

_present: list[RunState] = []
"""The run of this process: at most one, because torch.distributed and the random streams belong to the process."""

_numbers = count(1)
"""Of the runs of this process, one after the other: after a restart the script makes them again in this order."""


def init(
    *,
    seed: int = 0,
    lanes: int | None = None,
    strategy: str | None = None,
    mesh: str | None = None,
    schedule: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    precision: str | int | None = None,
    numerics: str | None = None,
    allow: Sequence[str] = (),
    check_every: str | None = None,
    name: str | None = None,
    save_every: str | None = None,
    keep: int = 3,
    states: str | None = None,
) -> Run:
    """Join the run that this process belongs to; alone, it is a run of one rank. Collective: call it on every rank.

    The command line beats these arguments, and they beat the defaults. A second call in a process (a notebook cell that
    is run again) ends the first run.

    Args:
        seed: every random stream of the run comes from it.
        lanes: by default 4, or one per rank where there are more: 1 to 4 ranks have the same bits. One rank is fastest with lanes=1.
        strategy: "single", "ddp", "zero1", "model_parallel", "pipeline", "dp", "hogwild"; by default "auto" (docs/design/strategies.md).
        mesh: how ranks are arranged when a strategy cuts the model, such as "pipeline=2,ddp=2": two stages with two
            replicas each. The last name is the inner one: such ranks are neighbours, on one node. By default all ranks are stages of one replica. "dp=2" is one rank with two replicas.
        schedule: of a pipeline: "1f1b" (one forward, one backward) or "gpipe" (all forwards first).
        device: "cpu" or "cuda"; by default CUDA where there is a GPU for every rank of the node. `--device` beats it.
        threads: CPU threads per rank; they change bits. By default cores / lanes: name a number where bits must not change.
        precision: "32", "bf16-mixed" or "16-mixed" (also as Lightning Fabric and Accelerate spell them): in which dtype
            the lanes' forward passes compute, by torch.autocast. "16-mixed" scales the loss too; gradients are unscaled
            after the lanes, and an update whose gradient overflowed is skipped on every rank.
        numerics: "exact" fixes the order of sums and the kernels, "portable" on every x86-64 CPU too; "fast" leaves both to the backend, and bits differ.
        allow: operators of torch.ops.aten (`["nll_loss2d"]`) that may compute without a deterministic form under "exact".
        check_every: "50steps" or "off": how often ranks compare the bits of what all hold; by default at most 50 steps.
        name: the run's, for states: they are in samebits-runs/NAME/states, below the working directory.
        save_every: "500steps", "10min" or "epoch": save the state by itself, between two steps. The same script then
            resumes from the newest state when it starts again, on any number of ranks.
        keep: how many states stay.
        states: a URL ("s3://bucket/runs"): states are copied to URL/NAME, from where another machine continues.

    Raises:
        UsageError: when options and environment contradict each other.
        EnvironmentFailure: when the ranks cannot meet.
    """
    environment = read_environment()
    help_with_errors(environment)
    check_arguments(seed, lanes, threads, strategy=strategy, mesh=mesh, schedule=schedule)
    checks = check_steps(environment, check_every)
    saving = _saving(environment, said := SaidInScript(name, save_every, keep, states))
    finish()
    arithmetic = Arithmetic(None if precision is None else str(precision), numerics, allowed_named(allow))
    wanted = Wanted(Form(strategy, mesh, schedule), lanes, device, threads, operator.index(seed), arithmetic)
    run = assemble(environment, decide(environment, wanted, saving), kept := KeptStates())
    run.loop_state.prepared.hooks.append(run.loop_state.schedulers.watch())
    _save_by_itself(run, kept, saving, said)
    return _present_run(run, kept, checks)


def _saving(environment: RankEnvironment, said: SaidInScript) -> Saving | None:
    """What script and command line want; `verify` and `bench` do not ask the script."""
    settings = environment.settings
    given = settings.saving if settings is not None else None
    if settings is not None and settings.evidence and given is not None:
        return given
    return said.saving(given, os.environ)


def _save_by_itself(run: RunState, kept: KeptStates, saving: Saving | None, said: SaidInScript) -> None:
    settings = run.config.environment.settings
    is_given = settings is not None and settings.saving is not None
    is_users = run.config.purpose.is_users
    # Runs of `verify` and `bench` save nothing of their own; `verify --interrupt` gives its runs a place.
    if saving is not None and (is_users or is_given):
        asks = _who_asks(run) if is_users else NoStopRequests()
        others = settings.record.get("states", 0) if settings is not None and is_users else 0
        kept.save(Automatic(run, saving, others, claims=not is_given, asks=asks))
    if is_users and run.components.transport.rank == 0:
        for sentence in filter(None, (said.unused if saving is None else "", nothing_to_check(run))):
            say(sentence)


def _who_asks(run: RunState) -> NoStopRequests:
    """Who may ask the run to save and end; where ranks make their steps independently, no step is the same for all."""
    rank, folder = run.components.transport.rank, run.config.folder
    if run.config.mesh.asynchronous:
        return NoStopRequests()
    return SignalStopRequests(reports=rank == 0) if folder is None else LauncherStopRequests(folder.journal(rank))


def _present_run(run: RunState, kept: KeptStates, checks: int | None) -> Run:
    run.loop_state.comparison.requested = checks
    watch_device(run)
    settings = run.config.environment.settings
    if settings is not None and settings.snapshots is not None and not settings.evidence:
        kept.keep(Snapshots(run, settings.snapshots, settings.restart, next(_numbers)))
    if run.config.folder is not None and run.components.transport.rank == 0 and not run.config.mesh.asynchronous:
        run.loop_state.rates.open(run.config.folder.path)
    if (last := outlive(run, kept.snapshots, dict(os.environ))) is not None:
        kept.outlive(last)
    _present.append(run)
    atexit.register(_finish_at_exit)
    return Run(run)


def is_present() -> bool:
    """Whether this process has a run."""
    return bool(_present)


def finish() -> None:
    """End the run of this process: wait for the others, compare the models, write the result, let go.

    Called automatically at exit. A rank whose script failed does not wait. A rank that ends while others continue makes
    them raise, with both lines.

    Raises:
        UsageError: when the ranks no longer hold the same model, or are not at the same place.
    """
    if not _present:
        return
    run = _present.pop()
    run.loop_state.ended = True
    let_go()
    device_words.present.clear()
    atexit.unregister(_finish_at_exit)
    end(run)


def _finish_at_exit() -> None:
    """`finish`, where an exception can no longer change the exit code by itself."""
    run = _present[-1] if _present else None
    try:
        finish()
    except PeerLost:
        # The other rank's failure is reported, and is the cause of this one.
        pass
    except SamebitsError as error:
        if run is None or not _leave_failure(run, error):
            say(error)
        # Python ignores what an exit handler raises, so the exit code has to be set by hand.
        flush_output()
        os._exit(1 if isinstance(error, RanksDiffer) else 2)


def _leave_failure(run: RunState, error: SamebitsError) -> bool:
    """Leave the failure for the launcher; False without one, and when it could not be written."""
    rank, folder = run.components.transport.rank, run.config.folder
    script = Path(sys.argv[0]).absolute()
    return folder is not None and write_failure(folder.failure(rank), describe(rank, error, script, ()))
