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
from lockstep.run.parts import Parts
from lockstep.run.witness.witness import Taken, Witness

LEAST_REST_S = 30.0
"""The code behind the last step gets so long at least, and twice as long as the script took until then."""


def is_over(parts: Parts) -> bool:
    """Whether loops end here, because everything that was wanted is recorded."""
    return parts.witness is not None and parts.witness.over


def testify_begin(parts: Parts, loader: PreparedLoader, plan: EpochPlan) -> None:
    """An epoch begins."""
    if parts.witness is not None:
        parts.witness.initial(_taken(parts))
        parts.witness.plans.setdefault(loader.standing.number, plan)


def testify_step(parts: Parts) -> None:
    """The body of a step is finished. Every rank must call it.

    Raises:
        SystemExit: after the last wanted step, where the script's end is not wanted.
    """
    witness = parts.witness
    if witness is None:
        return
    witness.after_step(parts.ledger.step, _taken(parts))
    if witness.over:
        _begin_rest(parts, witness)


def testify_left(parts: Parts) -> None:
    """The script has left the loop over its steps in the middle of one: it is recorded at the next place where all ranks are."""
    if parts.witness is not None:
        parts.witness.left = parts.ledger.step


def settle(parts: Parts) -> None:
    """All ranks are here, between steps: record a step whose loop was left. Every rank must call it."""
    if parts.witness is not None and parts.witness.left is not None:
        testify_step(parts)


def testify_end(parts: Parts) -> None:
    """The script is over. Every rank must call it."""
    witness = parts.witness
    if witness is None or not witness.to_the_end:
        return
    settle(parts)
    if not witness.over:
        look_again_at_training(parts, witness)
    look_again_at_evaluation(parts, witness)
    witness.at_end(_taken(parts))
    witness.note_ending(reached=True)


def _begin_rest(parts: Parts, witness: Witness) -> None:
    if not witness.to_the_end or parts.mesh.asynchronous:  # such ranks make their steps each by itself
        raise SystemExit(0)
    look_again_at_training(parts, witness)
    witness.flush_end()
    witness.note_ending(reached=False)
    parts.transport.barrier("the last step of verify")  # nobody fails behind it before all have recorded it
    seconds = max(LEAST_REST_S, 2 * (time.monotonic() - witness.began_s))
    timer = threading.Timer(seconds, _end_here, (witness, seconds))
    timer.daemon = True
    timer.start()


def _end_here(witness: Witness, seconds: float) -> None:
    """The script goes on and on. Every rank ends by itself at about this time; what one sees of another's end is no failure."""
    witness.note_ending(reached=False, why=f"it did not end within {seconds:.0f} s")
    os._exit(0)


def _taken(parts: Parts) -> Taken:
    return Taken(
        parts.models,
        [*parts.taken, *parts.stateful.values()],
        parts.is_here,
        partial(parts.strategy.whole_state, everyone=True),
    )
