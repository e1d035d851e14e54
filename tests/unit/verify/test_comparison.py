"""Where recordings differ first, and what a kind's cell says."""

import json
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from samebits.protocol.recording import AT_END
from samebits.protocol.run_folder import RunFolder
from samebits.verify.comparison import Side, cell, comparable, first_difference, rows_of
from samebits.verify.evidence import (
    End,
    Evidence,
    ItemAtStep,
    Kind,
    parse,
    read_evidence,
    with_samples_of_all,
)

ITEMS = (
    "loss",
    "gradient a",
    "norm of all gradients",
    "buffer b",
    "parameter a",
    "optimizer lr",
    "script ema.a",
    "value x",
)


def recorded(steps: int = 3, items: tuple[str, ...] = ITEMS, **changed: str) -> dict[ItemAtStep, str]:
    """Every value is "0" but those in `changed`, by f"{item}@{step}"."""
    return {
        ItemAtStep(step, item): changed.get(f"{item}@{step}", "0") for step in range(1, steps + 1) for item in items
    }


def of(kind: Kind) -> Callable[[ItemAtStep], bool]:
    return lambda place: place.kind is kind


def one(**changed: str) -> Evidence:
    return Evidence((recorded(**changed),))


def test_equal_runs_have_no_difference() -> None:
    assert first_difference([one(), one(), one()]) is None


@given(st.integers(1, 3), st.sampled_from(ITEMS), st.integers(1, 3), st.sampled_from(ITEMS))
def test_the_earliest_step_wins_and_in_it_the_earliest_item(step: int, item: str, step2: int, item2: str) -> None:
    changed = {f"{item}@{step}": "1", f"{item2}@{step2}": "1"}
    difference = first_difference([one(), one(**changed)])
    first = min((step, ITEMS.index(item)), (step2, ITEMS.index(item2)))
    assert difference is not None
    assert (difference.place.step, difference.place.item) == (first[0], ITEMS[first[1]])
    assert (difference.left, difference.right) == (Side(0, 0), Side(1, 0))
    assert (difference.left_value, difference.right_value) == ("0", "1")


def test_a_difference_among_replicas_comes_before_one_between_runs() -> None:
    split = Evidence((recorded(), recorded(**{"buffer b@3": "1"})))
    difference = first_difference([one(), one(**{"loss@1": "1"}), split])
    assert difference is not None
    assert difference.among_replicas
    assert (difference.left, difference.right) == (Side(2, 0), Side(2, 1))


def test_what_the_script_holds_on_one_rank_only_is_no_difference_among_replicas() -> None:
    without = tuple(item for item in ITEMS if not item.startswith("script"))
    assert first_difference([Evidence((recorded(), recorded(items=without)))]) is None


def test_an_item_that_one_run_lacks_is_a_difference() -> None:
    difference = first_difference([one(), Evidence((recorded(items=ITEMS[:-1]),))])
    assert difference is not None
    assert (difference.place, difference.right_value) == (ItemAtStep(1, "value x"), None)


def test_a_cell_hashes_all_steps_of_its_kind_only() -> None:
    reference, other = one(), one(**{"loss@3": "1"})
    assert cell(of(Kind.LOSS), other, reference).digest != cell(of(Kind.LOSS), reference, reference).digest
    assert cell(of(Kind.BUFFER), other, reference) == cell(of(Kind.BUFFER), reference, reference)
    assert cell(of(Kind.LOSS), other, reference).differs_at == 3
    assert cell(of(Kind.BUFFER), other, reference).num_items == 1


def test_recordings_are_read_in_order_and_the_first_of_two_counts(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    folder.evidence(0).parent.mkdir()
    lines = [
        {"step": 1, "items": {"loss": "a", "parameter a": "b"}},
        {"step": 1, "items": {"loss": "c", "value v": "d"}},
    ]
    folder.evidence(0).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    evidence = read_evidence(folder, 2)
    assert list(evidence.ranks[0].items()) == [
        (ItemAtStep(1, "loss"), "a"),
        (ItemAtStep(1, "parameter a"), "b"),
        (ItemAtStep(1, "value v"), "d"),
    ]
    assert evidence.ranks[1] == {}
    assert evidence.num_steps == 1
    assert parse(iter(())) == {}


def test_the_samples_of_all_lanes_stand_in_front_of_every_ranks_step() -> None:
    first = {
        ItemAtStep(1, "samples of lane 10"): "a",
        ItemAtStep(1, "loss"): "0",
        ItemAtStep(AT_END, "parameter a"): "1",
    }
    second = {
        ItemAtStep(1, "samples of lane 2"): "b",
        ItemAtStep(1, "loss"): "0",
        ItemAtStep(AT_END, "again lane 2"): "c",
    }
    for recorded in with_samples_of_all([first, second]):
        assert [place.item for place in recorded if place.step == 1] == [
            "samples of lane 2",
            "samples of lane 10",
            "loss",
        ]
        assert recorded[ItemAtStep(AT_END, "again lane 2")] == "c"
    assert with_samples_of_all([first, {}])[1] == {}
    stages = [{ItemAtStep(1, "samples of lane 0"): value} for value in "ab"]
    assert with_samples_of_all(stages) == stages, "stages that carry one lane must have the same samples"


def test_what_some_run_did_not_come_to_is_compared_by_nobody() -> None:
    at_end = {ItemAtStep(AT_END, "value x"): "1", ItemAtStep(AT_END, "again lane 0"): "2"}
    more = {ItemAtStep(AT_END, "parameter a"): "3"}
    whole = Evidence((recorded() | at_end | more,), End(over=True, reached=True))
    part = Evidence((recorded() | at_end,), End(over=True))
    assert comparable([whole, whole]) == [whole, whole]
    left, right = comparable([whole, part])
    assert left.ranks == right.ranks == part.ranks
    assert first_difference([left, right]) is None


def test_the_rows_of_steps_do_not_look_at_the_end_which_has_rows_of_its_own() -> None:
    at_end = {ItemAtStep(AT_END, item): "1" for item in ("parameter a", "script s", "again lane 0")}
    start = {ItemAtStep(0, "initial a"): "1"}
    bare, more = rows_of([one()]), rows_of([Evidence((start | recorded() | at_end,))])
    assert [row.title for row in more] == [
        "initial values (1)",
        *(row.title for row in bare),
        "at the end (2)",
        "samples again (1)",
    ]
    assert [row.cells for row in more[1:-2]] == [row.cells for row in bare]
    assert sum(row.num_items for row in more if row.in_each_step) == len(ITEMS)


def test_a_recording_tells_where_a_nan_stands_first() -> None:
    assert one().first_nan is None
    assert one(**{"gradient a@2": "0" * 32 + " nan", "loss@3": "nan"}).first_nan == ItemAtStep(2, "gradient a")
