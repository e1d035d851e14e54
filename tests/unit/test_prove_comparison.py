"""Where recordings differ first, and what a kind's cell says."""

import json

from hypothesis import given
from hypothesis import strategies as st

from lockstep.layout.run_folder import RunFolder
from lockstep.prove.comparison import Side, cell, first_difference
from lockstep.prove.evidence import Evidence, Kind, Place, number_of, parse, read_evidence

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


def recorded(steps: int = 3, items: tuple[str, ...] = ITEMS, **changed: str) -> dict[Place, str]:
    """Every value is "0" but those in `changed`, by f"{item}@{step}"."""
    return {Place(step, item): changed.get(f"{item}@{step}", "0") for step in range(1, steps + 1) for item in items}


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


def test_all_items_of_the_first_step_are_told_and_no_later_ones() -> None:
    difference = first_difference([one(), one(**{"loss@2": "1", "parameter a@2": "1", "value x@3": "1"})])
    assert difference is not None
    assert [place.item for place in difference.places] == ["loss", "parameter a"]


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
    assert (difference.place, difference.right_value) == (Place(1, "value x"), None)


def test_fewer_steps_are_a_difference() -> None:
    difference = first_difference([Evidence((recorded(2),)), Evidence((recorded(3),))])
    assert difference is not None
    assert difference.place == Place(3, "loss")


def test_a_cell_hashes_all_steps_of_its_kind_only() -> None:
    reference, other = one(), one(**{"loss@3": "1"})
    assert cell(Kind.LOSS, other, reference).digest != cell(Kind.LOSS, reference, reference).digest
    assert cell(Kind.BUFFER, other, reference) == cell(Kind.BUFFER, reference, reference)
    assert cell(Kind.LOSS, other, reference).differs_at == 3
    assert cell(Kind.BUFFER, other, reference).num_items == 1


def test_a_cell_names_the_rank_that_differs_in_its_own_run() -> None:
    split = Evidence((recorded(), recorded(), recorded(**{"loss@2": "1"})))
    found = cell(Kind.LOSS, split, one())
    assert (found.differs_at, found.rank) == (2, 2)


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
        (Place(1, "loss"), "a"),
        (Place(1, "parameter a"), "b"),
        (Place(1, "value v"), "d"),
    ]
    assert evidence.ranks[1] == {}
    assert evidence.num_steps == 1
    assert parse(iter(())) == {}


@given(st.floats(allow_nan=False))
def test_numbers_are_told_from_hashes_and_texts(number: float) -> None:
    assert number_of(number.hex()) == number
    assert number_of("0" * 32) is None
    assert number_of("True") is None
    assert number_of("12") == 12.0
