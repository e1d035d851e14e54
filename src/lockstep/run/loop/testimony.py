"""When a rank's witness speaks, under `lockstep verify`: after each step, and when the script is over.

After the last wanted step the script is not ended: its loops over steps and epochs end as if the data were over, so that the
code behind them runs too, and what it leaves is recorded as "at the end". A script that does not come to its end within a
while (it waits for more steps) is ended, and that is told: it is no fault.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial

from lockstep.feed.loader import PreparedLoader
from lockstep.feed.order import EpochPlan
from lockstep.run.loop.second_look import look_again_at_evaluation, look_again_at_training
from lockstep.run.run_state import Machinery, RunState
from lockstep.run.witness.witness import Taken, Witness

LEAST_REST_S = 30.0
"""The code behind the last step gets so long at least, and twice as long as the script took until then."""


def is_over(machinery: Machinery) -> bool:
    """Whether loops end here, because everything that was wanted is recorded."""
    return machinery.witness is not None and machinery.witness.over


def testify_begin(run: RunState, loader: PreparedLoader, plan: EpochPlan) -> None:
    """An epoch begins."""
    if run.machinery.witness is not None:
        run.machinery.witness.initial(_taken(run))
        run.machinery.witness.plans.setdefault(loader.standing.number, plan)


def testify_step(run: RunState) -> None:
    """The body of a step is finished. Every rank must call it.

    Raises:
        SystemExit: after the last wanted step, where the script's end is not wanted.
    """
    witness = run.machinery.witness
    if witness is None:
        return
    witness.after_step(run.machinery.ledger.step, _taken(run))
    if witness.over:
        _begin_rest(run, witness)


def testify_left(machinery: Machinery) -> None:
    """The script has left the loop over its steps in the middle of one: it is recorded at the next place where all ranks are."""
    if machinery.witness is not None:
        machinery.witness.left = machinery.ledger.step


def settle(run: RunState) -> None:
    """All ranks are here, between steps: record a step whose loop was left. Every rank must call it."""
    if run.machinery.witness is not None and run.machinery.witness.left is not None:
        testify_step(run)


def testify_end(run: RunState) -> None:
    """The script is over. Every rank must call it."""
    witness = run.machinery.witness
    if witness is None or not witness.to_the_end:
        return
    settle(run)
    if not witness.over:
        look_again_at_training(run, witness)
    look_again_at_evaluation(run, witness)
    witness.at_end(_taken(run))
    witness.note_ending(reached=True)


def _begin_rest(run: RunState, witness: Witness) -> None:
    if not witness.to_the_end or run.setup.mesh.asynchronous:  # such ranks make their steps each by itself
        raise SystemExit(0)
    look_again_at_training(run, witness)
    witness.flush_end()
    witness.note_ending(reached=False)
    run.machinery.transport.barrier("the last step of verify")  # nobody fails behind it before all have recorded it
    seconds = max(LEAST_REST_S, 2 * (time.monotonic() - witness.began_s))
    timer = threading.Timer(seconds, _end_here, (witness, seconds))
    timer.daemon = True
    timer.start()


def _end_here(witness: Witness, seconds: float) -> None:
    """The script goes on and on. Every rank ends by itself at about this time; what one sees of another's end is no failure."""
    witness.note_ending(reached=False, why=f"it did not end within {seconds:.0f} s")
    os._exit(0)


def _taken(run: RunState) -> Taken:
    return Taken(
        run.progress.models,
        [*run.progress.taken, *run.progress.stateful.values()],
        run.is_here,
        partial(run.machinery.strategy.whole_state, everyone=True),
    )
