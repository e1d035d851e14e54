"""Who is wrong when ranks hold different bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.rank.checks.replicas import Damage, first_damage

GOOD = {"a": "1", "b": "2"}
BAD, WORSE = {"a": "1", "b": "3"}, {"a": "9", "b": "2"}


@pytest.mark.parametrize(
    ("told", "part_of", "found"),
    [
        ([GOOD, GOOD, GOOD], (), None),
        ([{}, {}], (), None),
        ([GOOD], (), None),
        ([GOOD, BAD], (), Damage("b", (0, 1), False)),
        ([GOOD, BAD, GOOD], (), Damage("b", (1,), True)),
        ([BAD, GOOD, GOOD], (), Damage("b", (0,), True)),
        ([BAD, GOOD, BAD], (), Damage("b", (1,), True)),
        ([BAD, WORSE, GOOD], (), Damage("a", (1,), True)),
        ([GOOD, GOOD, BAD, BAD], (), Damage("b", (0, 1, 2, 3), False)),
        ([BAD, GOOD, {"a": "1", "b": "4"}, GOOD, GOOD], (), Damage("b", (0, 2), True)),
        ([GOOD, {"a": "1"}, GOOD], (), Damage("b", (1,), True)),
        ([GOOD, BAD, GOOD, BAD], (0, 1, 0, 1), None),
        ([GOOD, BAD, GOOD, GOOD, GOOD, BAD], (0, 1, 0, 1, 0, 1), Damage("b", (3,), True)),
        ([GOOD, GOOD, BAD, BAD], (0, 0, 1, 1), None),
        ([GOOD, GOOD, GOOD, BAD, GOOD, BAD], (0, 0, 0, 1, 1, 1), Damage("b", (4,), True)),
    ],
)
def test_the_majority_decides_over_the_first_tensor_that_differs(
    told: Sequence[Mapping[str, str]], part_of: Sequence[int], found: Damage | None
) -> None:
    assert first_damage(told, part_of) == found


@given(st.lists(st.sampled_from("xyz"), min_size=1, max_size=9), st.randoms())
def test_the_decision_does_not_depend_on_the_order_of_the_ranks(hashes: list[str], random: object) -> None:
    order = list(range(len(hashes)))
    random.shuffle(order)  # type: ignore[attr-defined]
    plain = first_damage([{"a": one} for one in hashes])
    mixed = first_damage([{"a": hashes[rank]} for rank in order])
    assert (plain is None) == (mixed is None) == (len(set(hashes)) == 1)
    if plain is not None and mixed is not None:
        assert plain.has_majority == mixed.has_majority
        assert set(plain.ranks) == {order[place] for place in mixed.ranks}


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (Damage("w", (1,), True), "rank 1 no longer holds the same bits as the other ranks in 'w'"),
        (Damage("w", (1, 4), True), "rank 1 and rank 4 no longer hold the same bits as the other ranks in 'w'"),
        (
            Damage("w", (0, 1), False),
            "rank 0 and rank 1 no longer hold the same bits in 'w', so one of the two is wrong",
        ),
        (
            Damage("w", (0, 1, 2), False),
            "rank 0 and 2 more (ranks 1 and 2) no longer hold the same bits in 'w', and most of them agree on none",
        ),
    ],
)
def test_damage_is_one_sentence(damage: Damage, sentence: str) -> None:
    assert f"rank {damage.ranks[0]} {damage.what}" == sentence
