"""How a rank waits, as a decision from the CPUs of all."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.siblings import cpus_in, siblings
from samebits.rank.transport.local.tuning import Room, is_crowded

NO_QUOTA = math.inf


def rooms(*of_ranks: tuple[str, int]) -> list[Room]:
    return [Room(cpus_in(cpus), threads) for cpus, threads in of_ranks]


@pytest.mark.parametrize(
    ("of_ranks", "quota", "crowded"),
    [
        ([("0-1", 1)] * 2, NO_QUOTA, False),
        ([("0-1", 1)] * 2, 1.5, True),
        ([("0-1", 1)] * 4, NO_QUOTA, True),
        ([("0-1", 2)] * 2, NO_QUOTA, True),
        ([("0", 1), ("1", 1)], NO_QUOTA, False),  # each bound to a core of its own, as mpirun does
        ([("0", 1), ("0", 1)], NO_QUOTA, True),
        ([("0", 1), ("0", 1), ("1-7", 1)], NO_QUOTA, True),  # two of them on one of many
        ([("0-7", 4), ("0-7", 4)], NO_QUOTA, False),
    ],
)
def test_ranks_are_crowded_when_some_of_their_threads_must_share_a_cpu(of_ranks, quota, crowded) -> None:
    assert is_crowded(rooms(*of_ranks), quota) == crowded


@given(
    st.lists(st.builds(Room, st.frozensets(st.integers(0, 5), max_size=4), st.integers(1, 3)), min_size=1, max_size=8)
)
def test_ranks_are_crowded_exactly_where_more_threads_than_cpus_must_stay(ranks: list[Room]) -> None:
    together = sum(room.threads for room in ranks) > len(frozenset().union(*(room.cpus for room in ranks)))
    within = [sum(room.threads for room in ranks if room.cpus <= place.cpus) > len(place.cpus) for place in ranks]
    assert is_crowded(ranks, NO_QUOTA) == (together or any(within))


def test_a_group_of_two_in_a_crowd_of_eight_waits_as_the_crowd_does() -> None:
    crowd = rooms(*[("0-1", 1)] * 8)
    assert not is_crowded(crowd[:2], NO_QUOTA)
    assert is_crowded(crowd, NO_QUOTA)


@pytest.mark.parametrize(
    ("text", "found"),
    [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("all", set()), ("0-99999999", set()), ("3-1", set())],
)
def test_a_list_of_cpus_is_read_as_the_kernel_writes_it(text: str, found: set[int]) -> None:
    assert cpus_in(text) == found


def test_a_machine_without_topology_files_has_no_known_siblings(tmp_path: Path) -> None:
    assert siblings(0, tmp_path) == frozenset()
    file = tmp_path / "cpu0" / "topology" / "thread_siblings_list"
    file.parent.mkdir(parents=True)
    file.write_text("0,4\n")
    assert siblings(0, tmp_path) == {0, 4}
    file.write_text("7\n")  # not even itself
    assert siblings(0, tmp_path) == frozenset()
