"""How long ranks that are to end are left alone, so that one of them keeps its step's beginning."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from samebits.launcher.blame import RankEnd, Send, from_now
from samebits.launcher.choices import Recover, Recovery
from samebits.launcher.recovery import Loss
from samebits.launcher.supervise.last_snapshots import PATIENCE_S, LastSnapshots
from samebits.protocol.journal.failure import Failure, FailureKind
from samebits.protocol.journal.signals import Event, News

RANKS = frozenset({0, 1})


def last(*news: News, history: list[Loss] | None = None) -> LastSnapshots:
    observer = cast("Any", SimpleNamespace(tail=lambda _rank: []))
    made = LastSnapshots(Recovery(Recover.AUTO), observer, history or [])
    for one in news:
        made.take(one)
    return made


def able(rank: int) -> News:
    return News(rank, Event.KEEPS)


def test_ranks_that_can_are_left_alone_until_one_has() -> None:
    ranks = last(able(0), able(1))
    assert not ranks.until(RANKS, 5.0), "nobody was lost"
    ranks.expect(5.0)
    assert ranks.until(RANKS, 5.0) == 5.0 + PATIENCE_S
    ranks.take(News(1, Event.KEPT))
    assert not ranks.until(RANKS, 5.0)


def test_the_wait_ends_when_every_rank_says_that_it_takes_none() -> None:
    ranks = last(able(0), able(1), News(0, Event.KEPT, 1))
    ranks.expect(5.0)
    assert ranks.until(RANKS, 5.0)
    ranks.take(News(1, Event.KEPT, 1))
    assert not ranks.until(RANKS, 5.0)


def test_nobody_waits_for_ranks_that_cannot_or_are_gone_or_too_long() -> None:
    ranks = last(able(0))
    ranks.expect(5.0)
    assert not ranks.until(frozenset({1}), 5.0), "only rank 0 can"
    assert ranks.until(RANKS, 5.0)
    assert not ranks.until(RANKS, 5.0 + PATIENCE_S)
    ranks.give_up()
    assert not ranks.until(RANKS, 5.0)


@pytest.mark.parametrize(
    ("end", "waits"),
    [
        (RankEnd(1, 137, signal.SIGKILL, 9, False, None), True),
        (RankEnd(1, 1, 0, 9, False, Failure(1, FailureKind.SCRIPT, "ValueError", "", "t.py", 3, None, 5)), False),
        (RankEnd(1, 0, 0, 9, False, None), False),
    ],
)
def test_only_a_loss_after_which_all_start_again_is_worth_it(end: RankEnd, waits: bool) -> None:
    ranks = last(able(0))
    ranks.expect_after(end, 5.0)
    assert bool(ranks.until(RANKS, 5.0)) == waits
    again = last(able(0), history=[Loss(1, "was killed by signal 9 (SIGKILL)", 0)] * 3)
    again.expect_after(end, 5.0)
    assert not again.until(RANKS, 5.0), "all restarts are used up"


def test_a_plan_that_was_held_back_keeps_its_pauses() -> None:
    plan = (Send(1.0, signal.SIGTERM, RANKS), Send(1.5, signal.SIGKILL, RANKS))
    assert [send.at_s for send in from_now(plan, 9.0)] == [9.0, 9.5]
    assert from_now(plan, 0.5) == plan, "it is not sent sooner"
    assert from_now((), 9.0) == ()
