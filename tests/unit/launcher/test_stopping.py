"""Which signal goes to which rank when, and whose fault it was."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from samebits.launcher.blame import (
    RankEnd,
    Send,
    Verdict,
    after_bad_exit,
    after_failure,
    after_signal,
    due,
    verdict_of,
)
from samebits.launcher.request import EntryPoint, LaunchRequest, Output, Placement
from samebits.launcher.supervise.ending_ranks import Interruption
from samebits.launcher.terminal.terminal import Console
from samebits.protocol.journal.failure import Failure, FailureKind
from samebits.protocol.journal.ring import make_ring
from samebits.protocol.journal.signals import Asking

RANKS = frozenset(range(4))
REQUEST = LaunchRequest(EntryPoint(Path("train.py")), Placement(4, 1, "cpu"), Output(Path("run")))


def failure(rank: int, kind: FailureKind, time_ns: int, error: str = "ValueError: no") -> Failure:
    return Failure(rank, kind, error, f"Traceback\n{error}\n", "train.py", 3, None, time_ns)


def end(
    rank: int, code: int = 0, time_ns: int = 0, by: int = 0, stopped: bool = False, why: Failure | None = None
) -> RankEnd:
    return RankEnd(rank, 128 + by if by else code, by, time_ns, stopped, why)


def test_after_a_failure_the_others_are_gone_within_half_a_second_and_the_failed_rank_may_finish() -> None:
    plan = after_failure(10.0, 1, FailureKind.SCRIPT, RANKS)
    others = RANKS - {1}
    assert [(send.signal, send.ranks) for send in sorted(plan)] == [
        (signal.SIGTERM, others),
        (signal.SIGKILL, others),
        (signal.SIGKILL, frozenset({1})),
    ]
    assert max(send.at_s for send in plan if send.ranks == others) < 10.5


def test_a_rank_that_lost_a_peer_is_stopped_with_the_others() -> None:
    assert max(send.at_s for send in after_failure(0.0, 1, FailureKind.PEER, RANKS)) < 1.0
    assert all(send.ranks == RANKS for send in after_failure(0.0, 1, FailureKind.PEER, RANKS)), "it waits to be stopped"


def test_a_bad_exit_ends_all_others_within_a_second() -> None:
    assert max(send.at_s for send in after_bad_exit(0.0, RANKS)) < 1.0


@pytest.mark.parametrize(
    ("number", "handed_on"),
    [
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGHUP, signal.SIGTERM),
        (signal.SIGUSR1, signal.SIGTERM),
    ],
)
def test_control_c_is_handed_on_as_it_is_and_the_rest_as_sigterm(number: int, handed_on: int) -> None:
    first, second = sorted(after_signal(0.0, number, RANKS, again=False))
    assert (first.at_s, first.signal, second.signal) == (0.0, handed_on, signal.SIGKILL)


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    make_ring(tmp_path / "ring", 0)
    return Asking(tmp_path / "ring")


@pytest.mark.parametrize(("is_requested", "code", "ended_by"), [(True, 0, 0), (True, 143, 15), (False, 0, 15)])
def test_a_script_that_ends_well_before_it_hears_of_a_signal_has_ended_well(
    is_requested: bool, code: int, ended_by: int, asking: Asking
) -> None:
    interruption = Interruption(REQUEST, asking, Console(None), by=signal.SIGTERM, is_requested=is_requested)
    assert interruption.ended([end(0), end(1, code)]) == ended_by


@pytest.mark.parametrize("bad", [{"by": signal.SIGKILL}, {"code": 1}, {"code": 1, "why": True}])
def test_ranks_that_were_asked_to_end_do_not_wait_for_one_that_failed(bad: dict[str, int], asking: Asking) -> None:
    interruption = Interruption(REQUEST, asking, Console(None), by=signal.SIGTERM, is_requested=True)
    assert interruption.gave_up(end(0, 143), RANKS) is None, "it was saved"
    why = failure(1, FailureKind.SCRIPT, 0) if bad.pop("why", None) else None
    plan = interruption.gave_up(end(1, **bad, why=why), RANKS - {1})
    assert plan is not None
    assert [send.signal for send in plan] == [signal.SIGTERM, signal.SIGKILL]
    assert interruption.gave_up(end(2, 1), RANKS) is None, "once"


def test_the_second_signal_kills_at_once() -> None:
    assert after_signal(3.0, signal.SIGINT, RANKS, again=True) == (Send(3.0, signal.SIGKILL, RANKS),)


def test_what_is_due_is_sent_once_and_in_order() -> None:
    plan = after_signal(0.0, signal.SIGINT, RANKS, again=False)
    now, later = due(plan, 0.1)
    assert [send.signal for send in now] == [signal.SIGINT]
    assert due(later, 0.1) == ((), later)
    assert [send.signal for send in due(later, 9.0)[0]] == [signal.SIGKILL]


PEER, SCRIPT, USAGE = FailureKind.PEER, FailureKind.SCRIPT, FailureKind.USAGE


def test_all_well_is_zero() -> None:
    assert verdict_of([end(0), end(1)], 0) == Verdict(0, None)


def test_the_earliest_exception_is_the_cause_in_whatever_order_ranks_end() -> None:
    ends = [
        end(0, 1, 900, why=failure(0, PEER, 100, "RuntimeError: Connection reset by peer")),
        end(1, 1, 950, why=failure(1, SCRIPT, 200)),
        end(2, 1, 800, why=failure(2, SCRIPT, 300, "TypeError: later")),
        end(3, 0, 990, by=signal.SIGTERM, stopped=True),
    ]
    for order in permutations(ends):
        verdict = verdict_of(order, 0)
        assert verdict.culprit == ends[1]
        assert verdict.exit_code == 1
        assert sorted(verdict.stopped) == [0, 2, 3]


def test_a_kill_that_was_not_ours_beats_a_lost_peer_that_noticed_it_first() -> None:
    killed = end(1, time_ns=50_000_000, by=signal.SIGKILL)
    peer = end(0, 1, 60_000_000, why=failure(0, PEER, 10_000_000))
    assert verdict_of([peer, killed], 0).culprit == killed
    assert verdict_of([peer, killed], 0).exit_code == 137


def test_a_kill_comes_before_an_exception_that_it_caused() -> None:
    killed = end(1, time_ns=50_000_000, by=signal.SIGSEGV)
    wrapped = end(0, 1, 60_000_000, why=failure(0, SCRIPT, 45_000_000, "MyError: training broke"))
    assert verdict_of([wrapped, killed], 0).culprit == killed


def test_a_rank_that_we_stopped_is_never_the_cause() -> None:
    verdict = verdict_of(
        [end(0, 5, 100), end(1, 0, 50, by=signal.SIGKILL, stopped=True), end(2, 1, 60, stopped=True)], 0
    )
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.exit_code) == (0, 5)


def test_a_lost_peer_alone_is_shown_with_who_had_left() -> None:
    verdict = verdict_of([end(0, 1, 90, why=failure(0, PEER, 80)), end(1, 0, 10)], 0)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.exit_code, verdict.left_early[0].rank) == (0, 1, 1)
    assert verdict.leavers_text == (
        "rank 0 calls an exchange that rank 1, which came to the end of the script, did not call"
    )
    left = replace(end(1, 0, 10), left_at="train.py:9")
    verdict = verdict_of([end(0, 1, 90, why=failure(0, PEER, 80)), left], 0)
    assert verdict.leavers_text.startswith(
        "rank 1 ended with exit code 0 (sys.exit at train.py:9), while rank 0 went on"
    )


def test_a_mistake_in_the_use_is_two_and_the_same_on_all_ranks() -> None:
    ends = [end(rank, 2, 10, why=failure(rank, USAGE, rank, "UsageError: no lanes")) for rank in range(3)]
    verdict = verdict_of(ends, 0)
    assert (verdict.exit_code, verdict.same, verdict.stopped) == (2, (1, 2), ())


def test_a_person_who_stops_a_run_is_not_told_of_failures() -> None:
    assert verdict_of([end(0, 130, stopped=True)], signal.SIGINT) == Verdict(130, None)
