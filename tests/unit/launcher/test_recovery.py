"""What follows when a rank was lost: a pure decision."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from samebits.errors import RanksDiffer
from samebits.launcher.blame import RankEnd, Verdict
from samebits.launcher.choices import NO_LIMIT, OnDamage, Recover, Recovery
from samebits.launcher.recovery import (
    DEFAULT_RESTARTS,
    Loss,
    RestartAll,
    Scene,
    Stop,
    decide,
    loss_of,
    may_start_again,
    most_restarts,
)
from samebits.launcher.terminal.failure_block import restart_block
from samebits.launcher.terminal.report import Whence
from samebits.protocol.journal.failure import Failure, FailureKind, describe, kind_of
from samebits.protocol.journal.ring import Phase, Record

REPLACE = Recovery(Recover.AUTO)
AT_1204 = Record(9, 0, 1204, 3, Phase.COMPUTE, "lane 2", "/home/me/train.py", 31)


def ended(code: int = 0, by: int = 0, kind: FailureKind | None = None, *, left: bool = False) -> RankEnd:
    error = f"{kind}: no"
    failure = Failure(2, kind, error, error, "/home/me/train.py", 8, None, 1) if kind is not None else None
    return RankEnd(2, 128 + by if by else code, by, 1, False, failure, left)


def scene(end: RankEnd | None, *, samebits: bool = True, last: Record | None = AT_1204) -> Scene:
    return Scene(Verdict(end.code if end is not None else 0, end), samebits, last if samebits else None)


KILLED = scene(ended(by=signal.SIGKILL))


@pytest.mark.parametrize(
    ("end", "of_samebits", "of_plain"),
    [
        (ended(by=signal.SIGKILL), True, True),
        (ended(by=signal.SIGSEGV), True, True),
        (ended(3), True, True),
        (ended(1, kind=FailureKind.WORKER), True, True),
        (ended(1, kind=FailureKind.DAMAGE), True, True),
        (ended(3, left=True), False, True),
        (ended(1, kind=FailureKind.SCRIPT), False, True),
        (ended(1, kind=FailureKind.PEER), False, True),
        (ended(2, kind=FailureKind.USAGE), False, False),
        (None, False, False),
    ],
    ids=[
        "killed",
        "crashed",
        "os._exit",
        "worker",
        "damage",
        "sys.exit",
        "raised",
        "lost a peer",
        "misuse",
        "ended well",
    ],
)
def test_what_starts_all_ranks_again(end: RankEnd | None, of_samebits: bool, of_plain: bool) -> None:
    asked = Recovery(Recover.AUTO, 1)
    assert isinstance(decide(scene(end), asked, []), RestartAll) == of_samebits
    assert isinstance(decide(scene(end, samebits=False), asked, []), RestartAll) == of_plain
    assert decide(scene(end), Recovery(Recover.OFF, 5), []) == Stop()
    assert decide(replace(scene(end), can_start=False), asked, []) == Stop()


def test_scripts_of_samebits_start_again_by_themselves_and_plain_ones_when_asked() -> None:
    assert most_restarts(REPLACE, uses_samebits=True) == DEFAULT_RESTARTS
    assert most_restarts(REPLACE, uses_samebits=False) == 0
    assert most_restarts(Recovery(Recover.AUTO, 7), uses_samebits=False) == 7
    assert decide(scene(ended(by=9), samebits=False), REPLACE, []) == Stop()


def test_the_line_says_who_how_where_and_from_where_it_goes_on() -> None:
    decision = decide(KILLED, REPLACE, [])
    assert isinstance(decision, RestartAll)
    assert restart_block(decision, Whence(1200), "why it was killed").splitlines() == [
        "LOST      rank 2 was killed by signal 9 (SIGKILL) in step 1204 (1203 done, train.py:31)",
        "  why     why it was killed",
        "  back    all ranks start again (restart 1 of 3), from state step-1200",
        "          4 steps are computed again; lines below may repeat",
    ]
    for whence, end in (
        (Whence(1203, in_memory=True), "after step 1203, kept in memory\n          1 step is computed again; "),
        (Whence(1204), "from state step-1204\n          "),
        (
            Whence(why="no state holds rate"),
            "from the beginning (no state holds rate)\n          1204 steps are computed again; ",
        ),
    ):
        assert restart_block(decision, whence).endswith(f"(restart 1 of 3), {end}lines below may repeat")
    for ranks, who in ((2, "2 ranks, one less, start again"), (1, "1 rank, one less, starts again")):
        assert f"back    {who} (restart 1 of 3), from" in restart_block(replace(decision, ranks=ranks), Whence())


@pytest.mark.parametrize(
    ("end", "samebits", "sentence"),
    [
        (ended(3), True, "rank 2 ended with exit code 3 before the first step"),
        (ended(1, kind=FailureKind.WORKER), True, "rank 2 lost a loader worker before the first step (train.py:8)"),
        (ended(by=signal.SIGKILL), False, "rank 2 was killed by signal 9 (SIGKILL)"),
        (ended(1, kind=FailureKind.SCRIPT), False, "rank 2 failed with script: no (train.py:8)"),
    ],
)
def test_a_sentence_says_only_what_is_known(end: RankEnd, samebits: bool, sentence: str) -> None:
    decision = decide(scene(end, samebits=samebits, last=None), Recovery(Recover.AUTO, 2), [])
    assert isinstance(decision, RestartAll)
    assert decision.loss.sentence == sentence


def test_the_same_failure_of_the_same_rank_at_the_same_step_stops() -> None:
    first = Loss(2, "was killed by signal 9 (SIGKILL)", 1204)
    decision = decide(KILLED, REPLACE, [first, replace(first, step=1300)])
    assert isinstance(decision, Stop)
    assert decision.reason.startswith("rank 2 was killed by signal 9 (SIGKILL) in step 1204 (1203 done) again; ")
    for other in (
        replace(first, step=1203),
        replace(first, rank=0),
        replace(first, what="was killed by signal 11 (SIGSEGV)"),
    ):
        assert isinstance(decide(KILLED, REPLACE, [other]), RestartAll)


def test_deaths_before_the_first_step_are_the_same_only_one_after_the_other() -> None:
    before = scene(ended(by=signal.SIGKILL), last=None)
    first = Loss(2, "was killed by signal 9 (SIGKILL)", 0)
    assert isinstance(decide(before, REPLACE, [first]), Stop)
    assert isinstance(decide(before, REPLACE, [first, replace(first, rank=1, step=19)]), RestartAll)


def damaged(rank: int = 2, step: int = 1204) -> Scene:
    failure = describe(rank, RanksDiffer(rank, "no longer holds 'a'", "after step 1150 it did"), Path("train.py"), ())
    end = RankEnd(rank, 1, 0, 1, False, failure)
    return Scene(Verdict(1, end), True, replace(AT_1204, step=step))


def test_damage_starts_all_ranks_again_and_replaces_none() -> None:
    decision = decide(damaged(), REPLACE, [])
    assert isinstance(decision, RestartAll)
    assert decision.loss.sentence == "rank 2 no longer holds 'a' in step 1204 (1203 done, after step 1150 it did)"
    end = damaged().verdict.culprit
    assert end is not None
    assert not may_start_again(end, decision.loss, REPLACE, [])


def test_damage_that_comes_back_at_the_same_step_is_the_scripts_doing() -> None:
    first = decide(damaged(), REPLACE, [])
    assert isinstance(first, RestartAll)
    again = decide(damaged(), REPLACE, [first.loss])
    assert isinstance(again, Stop)
    assert again.is_script
    assert isinstance(decide(damaged(step=1300), REPLACE, [first.loss]), RestartAll)
    assert isinstance(decide(damaged(rank=1), REPLACE, [first.loss]), RestartAll)


def test_damage_stops_a_run_that_is_to_stop() -> None:
    assert decide(damaged(), replace(REPLACE, on_damage=OnDamage.STOP), []) == Stop()
    assert decide(damaged(), Recovery(Recover.OFF), []) == Stop()
    assert isinstance(decide(KILLED, replace(REPLACE, on_damage=OnDamage.STOP), []), RestartAll)


SHRINK = Recovery(Recover.AUTO, shrinks=True)
LOST = Loss(2, "was killed by signal 9 (SIGKILL)", 1204)


@pytest.mark.parametrize(
    ("recovery", "history", "by", "ranks", "follows"),
    [
        (SHRINK, [], signal.SIGKILL, 3, 2),
        (SHRINK, [LOST], signal.SIGKILL, 3, 2),
        (SHRINK, [], signal.SIGSEGV, 3, 2),
        (SHRINK, [], signal.SIGKILL, 1, 0),
        (SHRINK, [LOST], signal.SIGKILL, 1, None),
        (SHRINK, [replace(LOST, what="was killed by signal 11 (SIGSEGV)")], signal.SIGSEGV, 3, None),
        (REPLACE, [], signal.SIGKILL, 3, 0),
        (REPLACE, [replace(LOST, step=1100)], signal.SIGKILL, 3, 0),
        (REPLACE, [LOST], signal.SIGKILL, 3, 2),
        (REPLACE, [LOST], signal.SIGKILL, 1, None),
        (REPLACE, [replace(LOST, what="was killed by signal 11 (SIGSEGV)")], signal.SIGSEGV, 3, None),
        (REPLACE, [LOST] * 3, signal.SIGKILL, 3, None),
    ],
)
def test_how_many_ranks_go_on(
    recovery: Recovery, history: list[Loss], by: int, ranks: int, follows: int | None
) -> None:
    told = replace(scene(ended(by=by)), ranks=ranks, can_shrink=True)
    decision = decide(told, recovery, history)
    assert (decision.ranks if isinstance(decision, RestartAll) else None) == follows
    fixed = decide(replace(told, can_shrink=False), recovery, history)
    assert not isinstance(fixed, RestartAll) or fixed.ranks == 0


@pytest.mark.parametrize(("lanes", "ranks", "follows"), [(4, 4, 2), (4, 2, 1), (6, 6, 3), (6, 3, 2), (0, 4, 3)])
def test_where_ranks_need_equally_many_lanes_so_many_go_on(lanes: int, ranks: int, follows: int) -> None:
    told = replace(scene(ended(by=signal.SIGKILL)), ranks=ranks, can_shrink=True, even_lanes=lanes)
    decision = decide(told, SHRINK, [])
    assert isinstance(decision, RestartAll)
    assert (decision.ranks, decision.given_up) == (follows, ranks - follows)


def test_a_rank_that_is_killed_again_before_its_first_step_is_given_up() -> None:
    told = replace(scene(ended(by=signal.SIGKILL), last=None), ranks=4, can_shrink=True)
    decision = decide(told, REPLACE, [LOST])
    assert isinstance(decision, RestartAll)
    assert decision.ranks == 3
    assert decide(told, REPLACE, [replace(LOST, rank=0)]) == replace(decision, ranks=0)


@pytest.mark.parametrize("step", [0, 1204])
@pytest.mark.parametrize("can_shrink", [True, False])
def test_kills_from_outside_at_one_place_start_as_many_ranks_again_until_the_restarts_are_used_up(
    step: int, can_shrink: bool
) -> None:
    end = replace(ended(by=signal.SIGKILL), is_from_outside=True)
    told = replace(scene(end, last=replace(AT_1204, step=step)), ranks=4, can_shrink=can_shrink)
    losses: list[Loss] = []
    recovery = Recovery(Recover.AUTO, 60)
    for number in range(1, 61):
        assert may_start_again(end, loss_of(end, told.last, uses_samebits=True), recovery, losses)
        decision = decide(told, recovery, losses)
        assert isinstance(decision, RestartAll)
        assert (decision.number, decision.ranks) == (number, 0)
        losses.append(decision.loss)
    last = decide(told, recovery, losses)
    assert isinstance(last, Stop)
    assert last.reason.endswith("all 60 restarts are used up")


def test_a_plain_script_has_no_steps_that_could_be_the_same() -> None:
    asked, again = Recovery(Recover.AUTO, 2), scene(ended(1, kind=FailureKind.SCRIPT), samebits=False)
    first = decide(again, asked, [])
    assert isinstance(first, RestartAll)
    second = decide(again, asked, [first.loss])
    assert isinstance(second, RestartAll)
    assert (second.number, second.most) == (2, 2)
    last = decide(again, asked, [first.loss, second.loss])
    assert last == Stop("rank 2 failed with script: no (train.py:8); all 2 restarts are used up")


def test_fewer_ranks_that_a_plain_script_may_not_have_are_not_passed_over_in_silence() -> None:
    killed = scene(ended(by=signal.SIGKILL), samebits=False)
    reason = (
        "rank 2 was killed by signal 9 (SIGKILL); a script without samebits.init starts again only with --max-restarts"
    )
    assert decide(killed, Recovery(Recover.AUTO, shrinks=True), []) == Stop(reason)
    for silent in (Recovery(Recover.AUTO), Recovery(Recover.OFF), Recovery(Recover.AUTO, 0)):
        assert decide(killed, silent, []) == Stop()


def test_restarts_are_counted_down_only_where_somebody_set_a_limit() -> None:
    killed = Scene(Verdict(137, ended(by=9)), True, AT_1204)
    for most, words in ((3, "restart 1 of 3"), (NO_LIMIT, "restart 1")):
        decision = decide(killed, Recovery(Recover.AUTO, most), [])
        assert isinstance(decision, RestartAll)
        assert decision.counted == words


def test_a_killed_loader_worker_is_no_fault_of_the_script() -> None:
    killed = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
    outer = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
    assert kind_of(outer) is FailureKind.SCRIPT, "it called os._exit, say"
    outer.__cause__ = killed
    assert kind_of(killed) is kind_of(outer) is FailureKind.WORKER


@pytest.mark.parametrize(
    ("end", "recovery", "history", "starts"),
    [
        (ended(by=9), REPLACE, [], True),
        (ended(1, kind=FailureKind.WORKER), REPLACE, [], True),
        (ended(1, kind=FailureKind.SCRIPT), REPLACE, [], False),
        (ended(by=9), Recovery(Recover.OFF), [], False),
        (ended(by=9), Recovery(Recover.AUTO, 0), [], False),
        (ended(by=9), REPLACE, [Loss(0, "was killed", 1)] * 3, False),
        (ended(by=9), REPLACE, [Loss(2, "was killed by signal 9 (SIGKILL)", 1204)], False),
        (ended(by=9), REPLACE, [Loss(1, "was killed by signal 9 (SIGKILL)", 1204)], True),
    ],
)
def test_ranks_start_again_while_others_run_when_a_death_was_the_machines_doing(
    end: RankEnd, recovery: Recovery, history: list[Loss], starts: bool
) -> None:
    loss = loss_of(end, AT_1204, uses_samebits=True)
    assert may_start_again(end, loss, recovery, history) is starts
