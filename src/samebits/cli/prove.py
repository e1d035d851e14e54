"""`samebits run --prove 3steps`: before the run, its first steps on one rank, on two, and with the lanes in another order."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import replace

from samebits.cli.under_way import Progress, UnderWay, screen
from samebits.errors import UsageError
from samebits.launcher.choices import Verbosity
from samebits.launcher.proofs import Sources, remember, said_day, today
from samebits.launcher.request import LaunchRequest
from samebits.launcher.terminal.report import Line
from samebits.launcher.terminal.terminal import Console, Terminal
from samebits.launcher.trials.trials import Files, Program, Trials
from samebits.protocol.claims import Proved
from samebits.protocol.layout.mesh import choose_mesh
from samebits.verify.lane_order import Order
from samebits.verify.plain import PLAIN
from samebits.verify.report import show
from samebits.verify.result import Result
from samebits.verify.verify import Proof, verify

RANKS = (1, 2)


def prove_first(request: LaunchRequest, steps: int, terminal: Terminal) -> LaunchRequest:
    """Prove the script of `request`, and return the request with what was proved; end here where it is not proved.

    Raises:
        UsageError: where there is nothing to prove.
    """
    began, sources = time.monotonic(), Sources.of(request)
    files = sources.files()
    try:
        result = _result(request, steps)
    except BaseException:
        # The run folder was taken already; nothing is in it.
        with suppress(OSError):
            request.output.run_folder.rmdir()
        raise
    if request.output.verbosity is not Verbosity.QUIET:
        is_tried = result.lane_order is not None and result.lane_order.found is Order.SAME
        order = ", and with the lanes in another order" if is_tried else ""
        text = f"{result.num_steps} steps on 1 and 2 ranks{order}, in {time.monotonic() - began:.1f} s"
        Console(terminal).line(Line("proved", text))
    proved = Proved(result.num_steps, RANKS, result.lanes, result.threads, day=said_day(today()))
    remember(sources, files, request.entry.args, proved)
    return replace(request, computation=replace(request.computation, proved=proved))


def _result(request: LaunchRequest, steps: int) -> Result:
    """What the runs have proved; ends the command where they have not."""
    if not request.nodes.place.is_one_node:
        raise UsageError(
            "--prove makes its runs on one node.", "Leave it out, and run `samebits verify` on one node before."
        )
    result = _verified(request, steps)
    if result.not_exact:
        raise UsageError(f"--prove: {result.not_exact}", "Leave it out.")
    if not result.proved:
        show(result, screen())
        line = (
            "--prove: nothing was started. `samebits verify` shows more; without --prove the script runs all the same."
        )
        print(line, file=sys.stderr)
        sys.exit(result.exit_code or 1)
    return result


def _verified(request: LaunchRequest, steps: int) -> Result:
    computation, placement = request.computation, request.placement
    program = Program(
        script=request.entry.script,
        module=request.entry.module,
        args=request.entry.args,
        threads=placement.threads,
        threads_given=placement.threads_given,
        device=placement.device,
        device_given=placement.device_given,
        form=computation.form,
        arithmetic=computation.arithmetic,
    )
    # What is a mean over something else than samples is the script's own choice, and no reason not to run.
    lanes = choose_mesh(computation.form, placement.ranks).default_lanes()
    proof = Proof(program, RANKS, computation.lanes, steps, accepted=(PLAIN,), default_lanes=lanes)
    under_way = UnderWay(is_quiet=request.output.verbosity is Verbosity.QUIET)
    progress = Progress(under_way)
    with progress.until_stopped(), Trials(program, progress.watch, files=Files(note=under_way.note)) as trials:
        try:
            return verify(proof, trials)
        finally:
            trials.remove()
