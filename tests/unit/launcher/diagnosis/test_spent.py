"""Where steps spend their time, and who keeps the others waiting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.launcher.diagnosis.spent import Spent, Summary, percents, straggler, summary
from samebits.protocol.journal.gauges import Gauges


def spent(data=1, compute=20, exchange=2, update=2, samples=320, steps=20, script=0):
    """Milliseconds per step."""
    each = {"data": data, "compute": compute, "exchange": exchange, "update": update, "script": script}
    return Spent(steps, samples, {part: ms / 1e3 for part, ms in each.items()})


def test_two_looks_give_the_mean_of_the_steps_between():
    old, new = Gauges(step=10, samples=100, data_ns=10**9), Gauges(step=20, samples=420, data_ns=2 * 10**9)
    assert Spent.between(old, new) == Spent(
        10, 320, {"data": 0.1, "compute": 0, "exchange": 0, "update": 0, "script": 0}
    )


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([spent(), spent(compute=48, exchange=0)], (1, "compute")),
        ([spent(exchange=40), spent(exchange=40), spent(data=40)], (2, "data")),
        ([spent(), spent(update=30)], (1, "update")),
        ([spent(exchange=50), spent(script=50)], (1, "script")),
        ([spent(script=60), spent(compute=70)], (1, "compute")),  # rank 0 may wait there
        ([spent(), spent(compute=26)], None),  # a third more is noise
        ([spent(samples=160), spent(compute=40, samples=320)], None),  # it has twice the lanes
        ([spent(data=0.1), spent(data=1)], None),  # ten times as long, but nobody waits for 1 ms
        ([spent(), spent(compute=48, steps=9)], None),  # too early
        ([spent()], None),
    ],
)
def test_a_rank_that_keeps_the_others_waiting_is_named_with_its_part(ranks, expected):
    found = straggler(ranks)
    assert (found and (found.rank, found.part)) == expected


def test_the_sentence_says_how_long():
    found = straggler([spent(), spent(compute=48)])
    assert found.text == "rank 1 takes 48 ms a step in compute, the others 20 ms, and wait for it"


def test_the_summary_says_what_would_help():
    told = summary([spent(data=10), spent(data=10)])
    assert told.step_s == pytest.approx(0.034)
    assert told.shares == {"data": 29, "compute": 59, "exchange": 6, "optimizer": 6, "other": 0}
    assert told.slowest == ""
    assert told.advice.startswith("data 29%: more loader workers")
    assert told.is_starved
    assert summary([spent(exchange=20)] * 2).advice.startswith("exchange 47%")
    assert summary([spent()] * 2).advice == ""


def test_zero1_is_advised_where_it_would_pay():
    heavy = [spent(update=20)] * 2
    assert "zero1 would share it, for steps about 23% shorter" in summary(heavy, strategy="ddp").advice
    assert summary(heavy, strategy="zero1").advice == ""
    assert summary(heavy[:1], strategy="ddp").advice == ""
    assert summary([spent(update=4)] * 2, strategy="ddp").advice == ""


def test_a_millisecond_of_data_is_no_reason_for_workers_even_where_it_is_most_of_a_step():
    told = summary([spent(data=1, compute=1, exchange=0, update=0)])
    assert (told.advice, told.is_starved) == ("", False)


@given(st.dictionaries(st.text(), st.floats(0, 1e6), min_size=1).filter(lambda parts: sum(parts.values()) > 1e-6))
def test_percents_add_up_to_100_and_are_off_by_less_than_one(parts):
    whole, total = percents(parts), sum(parts.values())
    assert sum(whole.values()) == 100
    assert all(abs(whole[name] - 100 * part / total) <= 1 + 1e-9 for name, part in parts.items())


def test_a_run_without_steps_has_no_summary():
    assert summary([Spent.between(Gauges(), Gauges())]) == Summary()


def test_a_straggler_is_named_with_its_node():
    found = straggler([spent(), spent(compute=48, exchange=0)], homes={0: "node 0 (host a)", 1: "node 1 (host b)"})
    assert found is not None
    assert found.text.startswith("rank 1 on node 1 (host b) takes 48 ms a step in compute, the others 20 ms")
