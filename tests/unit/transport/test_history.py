"""What a new rank hears again is what the others have heard, part by part, and nothing else."""

from __future__ import annotations

import pytest

from lockstep.errors import PromiseBroken
from lockstep.transport import history
from lockstep.transport.history import History, Part


def replay(of: History) -> History:
    return History(of.encode())


def test_a_new_rank_hears_each_part_where_its_script_comes_to_it() -> None:
    survivor = History()
    survivor.note([b"init", b"\xff\x00"])
    survivor.enter(Part.BODY)
    survivor.note([b"an earlier body"])
    survivor.enter(Part.STEP)
    survivor.note([b"an earlier step"])
    survivor.enter(Part.BODY)
    survivor.note([b"order"])
    survivor.enter(Part.STEP)
    survivor.note([b"mean"])
    new = replay(survivor)
    assert (new.replays, new.next(), new.replays) == (True, [b"init", b"\xff\x00"], False)
    new.enter(Part.BODY)
    assert (new.peek(), new.next(), new.replays) == ([b"order"], [b"order"], False)
    new.enter(Part.STEP)
    assert new.next() == [b"mean"]
    assert not new.replays
    assert new.encode() == survivor.encode(), "it can tell the next one"


def test_exchanges_that_lead_to_a_state_are_not_heard_again() -> None:
    survivor = History()
    with survivor.unkept("a state is loaded"):
        survivor.note([b"newest state"])
        assert survivor.gap == "a state is loaded"
    assert survivor.gap == ""
    assert not replay(survivor).replays


def test_a_script_that_runs_in_another_way_is_not_guessed_about() -> None:
    survivor = History()
    survivor.note([b"a"])
    with pytest.raises(PromiseBroken, match="did not run the same way"):
        replay(survivor).enter(Part.BODY)


def test_what_is_too_much_to_keep_makes_a_gap_until_the_next_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_BYTES", 1 << 20)
    survivor = History()
    survivor.enter(Part.BODY)
    survivor.note([bytes(1 << 20)])
    assert "exchanged more than 1 MiB" in survivor.gap
    survivor.enter(Part.STEP)
    assert survivor.gap == ""
    assert survivor.note([b"x"]) is None


def test_what_tears_a_step_is_over_with_it_and_anything_before_the_steps_never() -> None:
    survivor = History()
    survivor.enter(Part.BODY)
    survivor.enter(Part.STEP)
    survivor.tear("in the middle of an update")
    survivor.note([b"x"])
    assert (survivor.gap, survivor.keeps) == ("in the middle of an update", False)
    survivor.enter(Part.STEP)
    assert (survivor.gap, survivor.keeps) == ("", True)
    survivor.enter(Part.BODY)
    survivor.tear("an update before the steps")
    survivor.enter(Part.STEP)
    assert survivor.gap == "an update before the steps", "a new rank would run the body again, but could not hear it"
