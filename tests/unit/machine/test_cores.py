"""Cores from affinity and control groups; threads from cores."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.machine.cores import Cores, bounded_cores, quotas, threads_per_rank


def test_an_affinity_of_twelve_with_two_ranks_gives_six_threads() -> None:
    cores = bounded_cores(12, [])
    assert cores == Cores(12, "affinity")
    assert threads_per_rank(cores.count, 2) == 6


@given(st.integers(1, 512), st.integers(1, 64))
def test_ranks_never_get_more_threads_than_cores_unless_there_are_more_ranks(cores: int, ranks: int) -> None:
    threads = threads_per_rank(cores, ranks)
    assert threads >= 1
    assert ranks * threads <= max(cores, ranks)


@pytest.mark.parametrize(("quota", "count"), [("250000 100000", 2), ("50000 100000", 1), ("max 100000", 12)])
def test_a_version_2_quota_bounds_the_cores(tmp_path: Path, quota: str, count: int) -> None:
    (tmp_path / "job" / "step").mkdir(parents=True)
    (tmp_path / "job" / "cpu.max").write_text(quota)
    assert bounded_cores(12, quotas("0::/job/step\n", tmp_path)).count == count


def test_a_version_1_quota_bounds_the_cores_and_says_so(tmp_path: Path) -> None:
    group = tmp_path / "cpu,cpuacct" / "docker"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("300000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    text = "5:memory:/other\n4:cpu,cpuacct:/docker\n0::/\n"
    assert bounded_cores(12, quotas(text, tmp_path)) == Cores(3, "cgroup quota of 3")


def test_inside_a_container_the_path_from_outside_leads_to_the_mount(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("200000 100000")
    assert quotas("0::/docker/0123456789abcdef\n", tmp_path) == [2.0]


def test_no_quota_is_minus_one_in_version_1(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert quotas("1:cpu:/\n", tmp_path) == []
