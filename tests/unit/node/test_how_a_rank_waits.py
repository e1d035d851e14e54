"""How a rank waits, as a decision; and the costs that it follows from, measured and kept."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.machine.siblings import cpus_in, siblings
from lockstep.node import native
from lockstep.node.kept_numbers import MOST_BYTES, OLDEST_S, KeptNumbers, cache_folder
from lockstep.node.wait_costs import WaitCosts, find_costs, key, pair_of
from lockstep.node.waiting import LEAST_SPIN_US, MOST_SPIN_US, SHORT_SPIN_US, Room, is_crowded, manner_of_waiting

NO_QUOTA = math.inf
KEY = {"processor": "a chip", "cpus": "2"}


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
    manner = manner_of_waiting(rooms(*of_ranks), quota, WaitCosts())
    assert manner.is_crowded == crowded
    assert (manner.spin_us == SHORT_SPIN_US) == crowded


@given(
    st.lists(st.builds(Room, st.frozensets(st.integers(0, 5), max_size=4), st.integers(1, 3)), min_size=1, max_size=8)
)
def test_ranks_are_crowded_exactly_where_more_threads_than_cpus_must_stay(ranks: list[Room]) -> None:
    together = sum(room.threads for room in ranks) > len(frozenset().union(*(room.cpus for room in ranks)))
    within = [sum(room.threads for room in ranks if room.cpus <= place.cpus) > len(place.cpus) for place in ranks]
    assert is_crowded(ranks, NO_QUOTA) == (together or any(within))


def test_a_group_of_two_in_a_crowd_of_eight_waits_as_the_crowd_does() -> None:
    crowd = rooms(*[("0-1", 1)] * 8)
    assert not manner_of_waiting(crowd[:2], NO_QUOTA, WaitCosts()).is_crowded
    assert manner_of_waiting(crowd, NO_QUOTA, WaitCosts()).is_crowded


def test_a_rank_looks_as_long_as_a_wake_up_takes_and_longer_where_nobody_loses_by_it() -> None:
    own = rooms(("0", 1), ("1", 1))
    assert manner_of_waiting(own, NO_QUOTA, WaitCosts(wake_us=20, slowed_by_spinning=1.7)).spin_us == 20
    assert manner_of_waiting(own, NO_QUOTA, WaitCosts(wake_us=20, slowed_by_spinning=1.0)).spin_us == 40


@given(st.builds(WaitCosts, st.floats(), st.floats()), st.integers(1, 64), st.floats(0.1))
def test_whatever_the_costs_say_the_limits_hold(costs: WaitCosts, threads: int, quota: float) -> None:
    manner = manner_of_waiting([Room(frozenset({0, 1}), threads)] * 2, quota, costs.within_limits())
    assert manner.spin_us == SHORT_SPIN_US if manner.is_crowded else LEAST_SPIN_US <= manner.spin_us <= MOST_SPIN_US


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


def test_the_pair_to_measure_on_are_threads_of_one_core_where_that_is_known() -> None:
    assert pair_of(frozenset({2, 3, 6}), frozenset({2, 6})) == (2, 6)
    assert pair_of(frozenset({2, 3, 6}), frozenset()) == (2, 3)


def test_the_cache_folder_is_where_the_specification_says() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/lockstep")
    assert cache_folder({"XDG_CACHE_HOME": "c", "HOME": "/h"}) == Path("/h/.cache/lockstep")
    assert cache_folder({}) is None


def test_kept_numbers_come_back_and_belong_to_this_user_alone(tmp_path: Path) -> None:
    kept = KeptNumbers(tmp_path / ".cache" / "lockstep", "waiting", KEY)
    assert kept.read(["wake_us"]) == {}
    assert kept.write({"wake_us": 7.5}) == ""
    assert kept.read(["wake_us"]) == {"wake_us": 7.5}
    assert [file.name for file in kept.file.parent.iterdir()] == [kept.file.name]
    assert kept.file.stat().st_mode & 0o777 == 0o600
    assert kept.file.parent.stat().st_mode & 0o777 == 0o700


def written(**changes: object) -> str:
    return json.dumps({"key": KEY, "written": time.time(), "numbers": {"wake_us": 7.5}} | changes)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * MOST_BYTES,
        "null",
        '"text"',
        written(key={**KEY, "cpus": "64"}),
        written(written=time.time() - OLDEST_S - 60),
        written(written=time.time() + 3600),
        written(written=math.nan),
        written(written="yesterday"),
        written(written=True),
        written(numbers={}),
        written(numbers=[7.5]),
        written(numbers={"wake_us": "7"}),
        written(numbers={"wake_us": None}),
        written(numbers={"wake_us": 0}).replace(": 0}", ": 1" + "0" * 2000 + "}"),
        written() + " " * MOST_BYTES + "x",
        written(padding="x" * (MOST_BYTES + 10)),
        "\udcff",
    ],
    ids=[f"content{number}" for number in range(18)],  # the same in every process, whatever the time
)
def test_a_file_that_says_something_else_does_not_count(tmp_path: Path, content: str) -> None:
    kept = KeptNumbers(tmp_path, "waiting", KEY)
    kept.file.write_text(content, errors="surrogateescape")
    kept.file.chmod(0o600)
    assert kept.read(["wake_us"]) == {}
    assert kept.write({"wake_us": 9}) == ""
    assert kept.read(["wake_us"]) == {"wake_us": 9}


def test_what_is_no_file_of_this_user_is_not_read_and_a_link_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptNumbers(tmp_path / "lockstep", "waiting", KEY)
    assert kept.write({"wake_us": 7.5}) == ""
    kept.file.chmod(0o666)
    assert kept.read(["wake_us"]) == {}
    elsewhere = kept.file.rename(tmp_path / "elsewhere.json")
    elsewhere.chmod(0o600)
    kept.file.symlink_to(elsewhere)
    assert kept.read(["wake_us"]) == {}
    kept.file.unlink()
    os.mkfifo(kept.file)
    assert kept.read(["wake_us"]) == {}
    kept.file.unlink()
    with socket.socket(socket.AF_UNIX) as end:
        monkeypatch.chdir(kept.file.parent)  # an address may not be long
        end.bind(kept.file.name)
        assert kept.read(["wake_us"]) == {}
    kept.file.unlink()
    if os.geteuid() == 0:
        assert kept.write({"wake_us": 7.5}) == ""
        os.chown(kept.file, 12345, -1)
        assert kept.read(["wake_us"]) == {}
        os.chown(kept.file.parent, 12345, -1)
        assert "not a folder of this user" in kept.write({"wake_us": 7.5})


def test_nothing_is_made_in_a_home_that_is_not_there_nor_in_that_of_another_user(tmp_path: Path) -> None:
    home = tmp_path / "home"
    kept = KeptNumbers(home / ".cache" / "lockstep", "waiting", KEY)
    assert "No such file" in kept.write({"wake_us": 7.5})
    assert not home.exists()
    if os.geteuid() != 0:
        return
    for there in (home, home / ".cache"):  # root under `sudo -E`: what it makes there, that user could not use
        there.mkdir()
        for folder in (home, there):
            os.chown(folder, 12345, -1)
        assert f"{there} is not a folder of this user" in kept.write({"wake_us": 7.5})
        assert list(there.iterdir()) == []


def test_a_place_that_cannot_be_written_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Not a directory" in KeptNumbers(tmp_path / "file" / "lockstep", "waiting", KEY).write({"wake_us": 1})
    beside = KeptNumbers(tmp_path / "file", "waiting", KEY)
    assert (beside.write({"wake_us": 1}), beside.in_the_way()) == (
        f"{tmp_path / 'file'} is no folder",
        tmp_path / "file",
    )
    (tmp_path / "away").symlink_to(tmp_path)
    assert "not a folder of this user" in KeptNumbers(tmp_path / "away", "waiting", KEY).write({"wake_us": 1})
    kept = KeptNumbers(tmp_path / "lockstep", "waiting", KEY)
    kept.file.mkdir(parents=True)
    assert kept.write({"wake_us": 1}) == f"{kept.file} is a folder"
    assert kept.in_the_way() == kept.file
    assert list(kept.file.parent.iterdir()) == [kept.file]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_none_makes_a_file_that_does_not_count(tmp_path: Path, value: float) -> None:
    kept = KeptNumbers(tmp_path, "waiting", KEY)
    assert kept.write({"wake_us": value}) == ""
    assert kept.read(["wake_us"]) == {}


@pytest.mark.skipif(not native.available(), reason="needs the compiled part")
class TestCosts:
    """Of this machine."""

    def test_they_are_measured_once_and_then_kept(self, tmp_path: Path) -> None:
        cpus = frozenset(os.sched_getaffinity(0))
        find_costs.cache_clear()
        first = find_costs(cpus, tmp_path)
        find_costs.cache_clear()
        again = find_costs(cpus, tmp_path)
        find_costs.cache_clear()
        if first.source != "measured":
            assert first.costs == WaitCosts(), first
            return
        assert (again.source, again.costs, again.file) == ("kept", first.costs, first.file)
        assert first.costs == first.costs.within_limits()

    def test_numbers_of_a_hostile_file_are_brought_within_limits(self, tmp_path: Path) -> None:
        cpus = frozenset(os.sched_getaffinity(0)) | {100, 101}
        kept = KeptNumbers(tmp_path, "waiting", key(len(cpus), len(siblings(min(cpus)) & cpus)))
        assert kept.write({"wake_us": 1e300, "slowed_by_spinning": -1e300}) == ""
        find_costs.cache_clear()
        assert find_costs(cpus, tmp_path).costs == WaitCosts(1000.0, 1.0)

    def test_one_cpu_is_not_measured_and_cpus_that_are_not_ours_are_no_reason_to_fail(self, tmp_path: Path) -> None:
        assert find_costs(frozenset({0}), tmp_path).source == "usual"
        assert native.compiled.measure_wait_costs(0, 100_000, 0.05) is None
        assert native.compiled.measure_wait_costs(-1, 0, 0.05) is None
        assert native.compiled.measure_wait_costs(0, 0, 0.0) is None
