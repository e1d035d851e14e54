"""The numbers of `samebits bench`: steps of the slowest rank, shares that add up, and what a pipeline loses where."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.bench.measures import (
    PARTS,
    Stage,
    explain_losses,
    ideal_speed_up,
    losses,
    parts_of,
    refined,
    spread,
    stage_of,
    step_times,
)
from tests.support.promises import promise

MS = 1_000_000


def rank(begin: int, end: int, *intervals: tuple[str, int, int], step: int = 4) -> dict[str, object]:
    return {
        "steps": [{"step": step, "samples": 8, "begin_ns": begin * MS, "end_ns": end * MS}],
        "intervals": [[part, "", a * MS, b * MS] for part, a, b in intervals],
    }


def test_a_step_is_as_long_as_on_its_slowest_rank_and_its_parts_are_means() -> None:
    (step,) = step_times([rank(0, 10, ("compute", 1, 8)), rank(2, 14, ("compute", 2, 7), ("exchange", 7, 20))])
    assert step.seconds == pytest.approx(0.012)
    assert step.samples == 8
    assert step.parts["compute"] == pytest.approx(0.006)
    assert step.parts["exchange"] == pytest.approx(0.0035)  # what reaches beyond the step is not counted
    assert step.parts["script"] == pytest.approx(0.0015)


def test_a_step_that_one_rank_did_not_measure_is_left_out() -> None:
    assert step_times([rank(0, 1, step=4), rank(0, 1, step=5)]) == ()


@promise(
    "what-verify-proves",
    "`samebits bench`: the parts of a step's time add up to it; what is within the noise gets no reason and no praise",
    also=["test_what_is_within_the_noise_gets_no_reason_and_no_praise", "test_hogwild_is_blamed_for_no_exchange"],
)
@given(st.lists(st.integers(0, 100), min_size=2, max_size=9), st.lists(st.sampled_from(PARTS), min_size=9, max_size=9))
def test_the_parts_of_a_step_add_up_to_it(edges: list[int], parts: list[str]) -> None:
    edges = sorted(edges)
    intervals = [(part, "", a, b) for part, a, b in zip(parts, edges[:-1], edges[1:], strict=False)]
    found = parts_of(intervals, {"begin_ns": 10, "end_ns": 90})
    assert sum(found.values()) == pytest.approx(80e-9)
    assert min(found.values()) >= 0


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=40))
def test_quartiles_lie_around_the_median(values: list[float]) -> None:
    found = spread(values)
    assert min(values) <= found.low <= found.median * (1 + 1e-12)
    assert found.median <= found.high * (1 + 1e-12)
    assert found.high <= max(values) * (1 + 1e-12)


def stage(number: int, busy: float, wait: float, other: float = 0.0) -> Stage:
    return Stage(number, (f"layer{number}",), busy / 3, busy * 2 / 3, wait, other)


def test_a_perfect_pipeline_loses_its_bubble_and_nothing_else() -> None:
    found = losses([stage(0, 8.0, 1.0), stage(1, 8.0, 1.0)], micro_batches=8)
    assert found is not None
    assert found.bubble == pytest.approx(1 / 9)
    assert (found.unequal, found.other) == pytest.approx((0, 0))
    assert found.useful * 2 == pytest.approx(ideal_speed_up(2, 8))


def test_the_slowest_stage_is_named_with_its_ratio() -> None:
    found = losses([stage(0, 4.0, 5.0), stage(1, 8.0, 1.0)], micro_batches=8)
    assert found is not None
    assert (found.slowest, found.ratio) == (1, pytest.approx(2))
    said = explain_losses(found, 2, 8)
    assert said.startswith("Of its step, 67% is work")
    assert said.index("unequal stages (rank 1 computes 2.00 times") < said.index("the bubble (1 of 8 micro-batches")


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=6),
    st.integers(1, 64),
)
def test_what_a_pipeline_loses_adds_up(times: list[tuple[float, float, float]], micro_batches: int) -> None:
    found = losses([stage(number, *each) for number, each in enumerate(times)], micro_batches)
    assert found is not None
    parts = (found.useful, found.unequal, found.bubble, found.other)
    assert sum(parts) == pytest.approx(1)
    assert min(parts) >= -1e-12


def test_a_stages_work_takes_the_place_of_its_lanes_and_waits_are_cut_out() -> None:
    intervals = [["data", "fetch", 0, 10], ["compute", "lane 0", 10, 50], ["update", "optimizer", 50, 60]]
    work = [["forward", 0, 12, 30], ["backward", 0, 30, 50], ["wait", -1, 12, 20]]
    assert refined(intervals, work) == [
        ["data", "fetch", 0, 10],
        ["compute", "lane 0", 10, 12],
        ["exchange", "wait", 12, 20],
        ["compute", "forward 0", 20, 30],
        ["compute", "backward 0", 30, 50],
        ["update", "optimizer", 50, 60],
    ]


@given(st.lists(st.integers(0, 60), max_size=12), st.lists(st.integers(0, 60), max_size=12))
def test_cutting_out_neither_loses_nor_doubles_time(edges: list[int], waits: list[int]) -> None:
    edges, waits = sorted(edges), sorted(waits)
    intervals = [["compute", "lane", a, b] for a, b in pairwise(edges)]
    work = [["wait", -1, a, b] for a, b in list(pairwise(waits))[::2]]
    found = refined(intervals, work)
    covered = [moment for _, _, begin, end in found for moment in range(begin, end)]
    wanted = {moment for _, _, begin, end in (*intervals, *work) for moment in range(begin, end)}
    assert len(covered) == len(set(covered))
    assert set(covered) == wanted


def test_a_stage_is_what_its_rank_did_in_the_measured_steps() -> None:
    told = {**rank(0, 10, ("data", 0, 1), ("compute", 1, 6), ("exchange", 6, 9)), "rank": 1, "layers": ["a"]}
    found = stage_of(told, step_times([told]))
    assert (found.rank, found.layers) == (1, ("a",))
    assert (found.busy_s, found.wait_s, found.other_s) == pytest.approx((0.005, 0.003, 0.001))
    assert losses([], 8) is None
